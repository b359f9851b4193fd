"""Print a stage that computes whole parts of its input again. Pure."""

from typing import Final

from service.protocol.ids import Epoch
from service.protocol.quoting import quoted
from service.protocol.relation import state_table
from workers.backfill.stages import BoundStage, Window
from workers.state_store.statements import same_values

PAGE: Final = "page"
"""The name of the rows of a page of the driver."""


def of_parts(bound: BoundStage, window: Window) -> list[str]:
    """Print the CTEs `gone` and `come`: the rows of all parts of which a version changed, before and after."""
    columns = _part_columns(bound) or "1 as one"
    parts = " union ".join(f"select {columns} from {side}_{bound.upstream.id}" for side in ("old", "new"))
    return [
        f"parts as materialized ({parts})",
        f"gone as materialized ({_computed(bound, window.after)})",
        f"come as materialized ({_computed(bound, window.upto)})",
    ]


def page_of_parts(bound: BoundStage, at: Epoch) -> str:
    """Print the query for the rows of the parts whose first row is on the page `PAGE`.

    Each part is thereby computed once, and whole. Rows of a part are ordered by vnode and by the text of their key,
    which is a total order, equal on all pages.
    """
    table, seen = state_table(bound.upstream.id), f"_from <= {at} and _to > {at}"
    before = f"{_rank(bound, 'e')} < {_rank(bound, 'p')}"
    earlier = " union all ".join(
        f"(select from {table} e where {same} and {seen} and {before})" for same in _same_part(bound, "e", "p")
    )
    parts = f"select distinct {_part_columns(bound)} from {PAGE} p where not exists ({earlier})"
    return f"with parts as materialized ({parts}) {_computed(bound, at)}"


def whole_part(bound: BoundStage, at: Epoch) -> str:
    """Print the query for the rows of the part that is the whole input."""
    return f"with parts as materialized (select 1 as one) {_computed(bound, at)}"


def _rank(bound: BoundStage, row: str) -> str:
    key = ", ".join(f"{row}.{quoted(part.name)}" for part in bound.upstream.key)
    return f'({row}._vnode, row({key})::text collate "C")'


def _computed(bound: BoundStage, at: Epoch) -> str:
    """Print the query for all rows of `parts`, at an epoch."""
    partition, alias = bound.stage.partition, bound.stage.driver.alias
    assert partition is not None
    relation = bound.upstream
    kept = [condition.sql for condition in bound.stage.conditions]
    rows = " union all ".join(
        f"(select {', '.join(f'{quoted(alias)}.{quoted(column.name)}' for column in relation.columns)}"
        f" from {state_table(relation.id)} {quoted(alias)}"
        f" where {' and '.join([*filter(None, [same]), f'_from <= {at} and _to > {at}', *kept])})"
        for same in _same_part(bound, quoted(alias), "p")
    )
    return (
        f"select computed.* from parts p cross join lateral"
        f" (with part as ({rows}) select * from ({partition.sql}) computed offset 0) computed"
    )


def _same_part(bound: BoundStage, row: str, part: str) -> tuple[str, ...]:
    """Return the conditions that a row belongs to a part: one for an index, and those for the few parts with a NULL."""
    partition = bound.stage.partition
    assert partition is not None
    nullable = [quoted(name) for name in partition.columns if bound.upstream.column(name).nullable]
    return same_values(list(map(quoted, partition.columns)), nullable, row, part)


def _part_columns(bound: BoundStage) -> str:
    assert bound.stage.partition is not None
    return ", ".join(map(quoted, bound.stage.partition.columns))
