"""Plan UNION, INTERSECT and EXCEPT.

All of them begin with a UNION ALL. The distinct forms group its rows by all columns and count the rows of each side.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import KeyColumn
from service.sql.queries import aggregates
from service.sql.queries.blocks import Block, Output, filtered, foreign
from service.sql.queries.branches import over_branches
from service.sql.queries.nodes import built, column
from service.sql.queries.relations import NAMELESS, Grouped, Parted, Rows, shown_by, union
from service.sql.queries.scope import Scope
from service.sql.queries.selects import ordered_query
from service.sql.text.tree import given

if TYPE_CHECKING:
    from service.sql.queries.planner import Planner

BRANCHES_MAX: Final = 64
_KNOWN: Final = frozenset({"this", "expression", "distinct", "order", "limit", "offset", "fetch", "with_"})
_ORDINAL: Final = "_key_copy"


def read_set(planner: "Planner", node: exp.SetOperation, scope: Scope) -> Block:
    """Return the block of a set operation. Raises Invalid and NotFound."""
    for clause in sorted(given(node) - _KNOWN):
        message = f"{clause.strip('_').upper()} is not supported in a view"
        raise Invalid(message, position=scope.tree.position(node))
    scope = planner.with_common(node, scope)
    if isinstance(node, exp.Union):
        block = _united(planner, node, scope)
        if node.args.get("distinct"):
            block = aggregates.distinct(planner, block)
    else:
        block = _compared(planner, node, scope)
    return ordered_query(planner, node, block, scope)


def _united(planner: "Planner", node: exp.SetOperation, scope: Scope) -> Block:
    """Return the block of a UNION ALL."""
    sides = [planner.query(one, scope) for one in (node.this, node.expression)]
    return _union(planner, sides, scope.tree.position(node))


def _union(planner: "Planner", sides: list[Block], place: int) -> Block:
    if len({len(one.outputs) for one in sides}) > 1:
        raise Invalid("each UNION query must have the same number of columns", position=place)
    if any(foreign(one) for one in sides):
        message = "a set operation that names the outer query is not supported in a view: write EXISTS for each side"
        raise Invalid(message, position=place)
    names = sides[0].outputs
    blocks = [one for side in sides for one in _branches(planner, side)]
    if len(blocks) > BRANCHES_MAX:
        message = f"the view has more than {BRANCHES_MAX} SELECTs in one UNION ALL"
        raise Invalid(message, position=place)
    reading = planner.made.reading(planner.made.add(union(blocks)))
    outputs = tuple(
        replace(one, name=name.name, place=name.place) for one, name in zip(reading.outputs, names, strict=True)
    )
    return replace(reading, outputs=outputs)


def _branches(planner: "Planner", side: Block) -> tuple[Block, ...]:
    """Return the branches of a side that is itself a UNION ALL, or the side."""
    only = side.only
    pending = only.shape.pending if only is not None else None
    if only is None or pending is None or not isinstance(pending.body, Rows):
        return (side,)
    blocks = pending.body.blocks
    # Rows of a shared relation are computed again only if each needs one row of a table.
    again = not pending.shared or all(one.only is not None and one.only.shape.pending is None for one in blocks)
    branches = over_branches(side, only.alias, blocks) if again else None
    if branches is not None and not pending.shared:
        # The inner relation is not needed any more.
        planner.made.pending.remove(pending)
    return (side,) if branches is None else branches


def _compared(planner: "Planner", node: exp.SetOperation, scope: Scope) -> Block:
    """Return the block of an INTERSECT or EXCEPT: groups of equal rows with the number of rows on each side."""
    sides = [planner.query(one, scope) for one in (node.this, node.expression)]
    names = sides[0].outputs
    marked = [
        replace(side, outputs=(*side.outputs, Output("side", built(f"{number}::smallint"))))
        for number, side in enumerate(sides)
    ]
    both = _union(planner, marked, scope.tree.position(node))
    keys = tuple(Output(f"k{at}", one.value, one.place) for at, one in enumerate(both.outputs[:-1]))
    side = both.outputs[-1].value
    calls = tuple((f"c{number}", built(f"count(*) FILTER (WHERE {{0}} = {number})", side)) for number in (0, 1))
    listed = [*(one.name for one in keys), "c0", "c1"]
    within = isinstance(node, exp.Intersect)
    body = Grouped(
        replace(both, outputs=()),
        keys,
        calls,
        tuple(Output(name, column(NAMELESS, name)) for name in listed),
        (tuple(range(len(keys))),),
        seen=None if within else built("{0} = 0", side),
    )
    reading = planner.made.reading(planner.made.add(body))
    first, second = (one.value for one in reading.outputs[-2:])
    outputs = tuple(
        replace(one, name=name.name, place=name.place) for one, name in zip(reading.outputs[:-2], names, strict=True)
    )
    if not node.args.get("distinct"):
        return _copies(planner, reading, outputs, within=within)
    kept = built(f"{{0}} > 0 AND {{1}} {'> 0' if within else '= 0'}", first, second)
    return replace(filtered(replace(reading, outputs=()), kept), outputs=outputs)


def _copies(planner: "Planner", reading: Block, outputs: tuple[Output, ...], *, within: bool) -> Block:
    """Return the block of an INTERSECT ALL or EXCEPT ALL, which has as many copies of a row as the counts say."""
    only = reading.only
    assert only is not None
    names = only.shape.columns
    number = 'least("part"."c0", "part"."c1")' if within else '"part"."c0" - "part"."c1"'
    copies = built(f'SELECT 1 FROM "part" CROSS JOIN LATERAL generate_series(1, {number}) AS "n"("n")')
    shown = [Output(name, column("part", name)) for name in names[:-2]]
    keys = tuple(part.name for part in only.shape.key)
    body = Parted(
        source=only,
        where=(),
        columns=keys,
        query=shown_by(copies, [*shown, Output(_ORDINAL, column("n", "n"))]),
        reads=frozenset(names),
        key=(*only.shape.key, KeyColumn(name=_ORDINAL)),
        outputs=tuple(Output(one.name, column(NAMELESS, one.name)) for one in shown),
        not_null=frozenset({_ORDINAL}),
    )
    made = planner.made.reading(planner.made.add(body))
    return replace(
        made,
        outputs=tuple(
            replace(one, name=name.name, place=name.place) for one, name in zip(made.outputs, outputs, strict=True)
        ),
    )
