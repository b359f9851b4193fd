"""Bind `backfill_order = DEFAULT | NONE | AUTO | FIXED(a -> b, ...)`, over names of relations.

AUTO reads the other sides of a join before the left-most one (`service.sql.queries.auto_order`). A query of scans and
unions has no join, so there all values but FIXED mean the same: no edges.
"""

from collections.abc import Collection, Hashable, Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Final

from service.domain.errors import Invalid, NotFound
from service.sql.statements.views import BackfillOrder
from service.sql.text.cursor import SCHEMA

CYCLE: Final = "Backfill order strategy has a cycle"
EDGES_MAX: Final = 1_000
"""Maximum of edges of an order. It is read whenever one of its scans may be waiting."""
TOO_MANY: Final = f"Backfill order strategy has more than {EDGES_MAX} edges"
Edges = tuple[tuple[str, str], ...]
"""Names of relations, as (before, after); each edge once."""


def bind_order(order: BackfillOrder, used: Collection[str], relations: Collection[str]) -> Edges:
    """Return the edges of an order over a query that scans the relations `used`.

    Raises NotFound and Invalid. The checks have RisingWave's order: bind, used in query, cycle.
    """
    names = [name for edge in order.edges for name in edge]
    if len(order.edges) > EDGES_MAX:
        raise Invalid(TOO_MANY, position=names[0].position)
    for one in names:
        if one.name not in relations:
            shown = f"{SCHEMA}.{one.name}" if one.qualified else one.name
            what = "table or source" if one.qualified else "table"
            raise NotFound(f'{what} "{shown}" does not exist', kind="relation", position=one.position)
    for one in names:
        if one.name not in used:
            message = f"Table or source '{one.typed}' specified in backfill_order is not used in the query"
            raise Invalid(message, position=one.position)
    edges = tuple(dict.fromkeys((before.name, after.name) for before, after in order.edges))
    if not acyclic(edges):
        raise Invalid(CYCLE, position=names[0].position)
    return edges


def dot(edges: Edges) -> tuple[str, ...]:
    """Return the order as lines of Graphviz's language, in an order that depends on the edges only."""
    arrows = sorted(f"{_vertex(before)} -> {_vertex(after)};" for before, after in edges)
    return ("digraph G {", *(f"  {arrow}" for arrow in arrows), "}")


def _vertex(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{SCHEMA}.{escaped}"'


def acyclic(edges: Iterable[tuple[Hashable, Hashable]]) -> bool:
    """Whether an order can be followed."""
    graph: TopologicalSorter[Hashable] = TopologicalSorter()
    for before, after in edges:
        graph.add(after, before)
    try:
        graph.prepare()
    except CycleError:
        return False
    return True
