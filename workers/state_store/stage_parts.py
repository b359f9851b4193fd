"""Print a stage that computes whole parts of its input again. Pure."""

from collections.abc import Iterator
from typing import Final

from service.protocol.ids import Epoch
from service.protocol.quoting import quoted
from service.protocol.relation import state_table
from service.protocol.stage import part_order
from workers.backfill.stages import BoundStage
from workers.state_store.stage_delta import NEW, OLD, PAGE, Delta, state_of, visible

ONE: Final = "select 1 as one"
"""The part that is the whole input."""


def of_parts(delta: Delta, *, anew: bool = False) -> list[str]:
    """Print the CTEs `gone` and `come`: the rows of all parts of which a version changed, before and after.

    With `anew`, the part that is the whole input counts as changed.
    """
    bound, alias = delta.bound, delta.bound.stage.driver.alias
    columns = _part_columns(bound) or "1 as one"
    parts = " union ".join(f"select {columns} from {delta.source(alias, side)}" for side in (OLD, NEW))
    return [
        f"parts as materialized ({ONE if anew else parts})",
        f"gone as materialized ({_computed(bound, state_of(delta, alias, OLD))})",
        f"come as materialized ({_computed(bound, state_of(delta, alias, NEW))})",
    ]


def page_of_parts(bound: BoundStage, at: Epoch, within: str) -> str:
    """Print the query for the rows of the parts whose first row is on the page `PAGE`.

    Each part is thereby computed once, and whole. The first row is that of the part's index, so it is found without
    reading the others. It is on the page if its vnode and key satisfy the condition `within`.
    """
    partition, relation = bound.stage.partition, bound.upstream
    assert partition is not None
    table, seen = state_table(relation.id), visible(at)
    key = ", ".join(["_vnode", *(quoted(part.name) for part in relation.key)])
    order = ", ".join(map(quoted, part_order(relation, partition))) or key
    firsts = " union all ".join(
        f"(select {key} from {table} e where {same} and {seen} order by {order} limit 1)"
        for same in _same_part(bound, "e", "p")
    )
    begun = f"select from ({firsts}) first where {within}"
    parts = f"select p.* from (select distinct {_part_columns(bound)} from {PAGE}) p cross join lateral ({begun}) begun"
    return f"with parts as materialized ({parts}) {_computed(bound, seen)}"


def whole_part(bound: BoundStage, at: Epoch) -> str:
    """Print the query for the rows of the part that is the whole input."""
    return f"with parts as materialized ({ONE}) {_computed(bound, visible(at))}"


def _computed(bound: BoundStage, seen: str) -> str:
    """Print the query for all rows of `parts`, over the versions of the input that satisfy `seen`."""
    partition, alias = bound.stage.partition, bound.stage.driver.alias
    assert partition is not None
    relation = bound.upstream
    kept = [condition.sql for condition in bound.stage.conditions]
    texts = (
        f"select {', '.join(f'{quoted(alias)}.{quoted(column.name)}' for column in relation.columns)}"
        f" from {state_table(relation.id)} {quoted(alias)}"
        f" where {' and '.join([*filter(None, [same]), seen, *kept])}"
        for same in _same_part(bound, quoted(alias), "p")
    )
    # Of the two kinds of a part only one has rows, so each may leave only its first ones.
    rows = " union all ".join(
        f"(select * from ({text}) part {partition.first})" if partition.first else f"({text})" for text in texts
    )
    return (
        f"select computed.* from parts p cross join lateral"
        f" (with part as ({rows}) select * from ({partition.sql}) computed offset 0) computed"
    )


def _same_part(bound: BoundStage, row: str, part: str) -> Iterator[str]:
    """Yield the conditions that a row belongs to a part: one for an index, and one for the few parts with a NULL."""
    partition = bound.stage.partition
    assert partition is not None
    relation = bound.upstream
    names = list(map(quoted, partition.columns))
    yield " and ".join(f"{row}.{name} = {part}.{name}" for name in names)
    nullable = [quoted(name) for name in partition.columns if relation.column(name).nullable]
    if nullable:
        null = " or ".join(f"{part}.{name} is null" for name in nullable)
        alike = " and ".join(f"{row}.{name} is not distinct from {part}.{name}" for name in names)
        yield f"({null}) and {alike}"


def _part_columns(bound: BoundStage) -> str:
    assert bound.stage.partition is not None
    return ", ".join(map(quoted, bound.stage.partition.columns))
