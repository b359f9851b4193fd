"""Estimate what a changed row costs in a stage, from the statistics of the state store. Pure.

An estimate is None where it needs a statistic that there is not. It counts the versions that the statistics count, and
leaves out what filters and further conditions exclude, so it is an upper bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from service.protocol.ids import RelationId
from service.protocol.relation import Relation
from service.protocol.stage import Equalities, Input, JoinKind, LookupIndex, Stage

MANY: Final = 10_000
"""A changed row that rewrites more rows than this is worth a warning."""
INDEXES_MAX: Final = 3
"""More lookup indexes of one relation are worth a warning, because every change of a row writes to all of them."""

_ENTRY: Final = 20
"""Bytes of an index entry besides the values: its header, its pointer and `_to`."""
_HASH: Final = 4
_FILLED: Final = 0.9
_MULTIPLIES: Final = (JoinKind.INNER, JoinKind.LEFT)


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """The number of different values of a column, the share of its NULLs, and the mean width of a value in bytes."""

    distinct: float
    nulls: float
    width: float


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """The number of rows of a relation, and what is known of its columns."""

    rows: float
    columns: Mapping[str, ColumnStatistics] = field(default_factory=dict[str, ColumnStatistics])


Statistics = Mapping[RelationId, TableStatistics]


def rows_per_value(statistics: Statistics, relation: RelationId, columns: Sequence[str]) -> float | None:
    """Return how many rows have one value of the columns. Of several columns, the one with most values counts."""
    table = statistics.get(relation)
    known = [] if table is None else [found for name in columns if (found := table.columns.get(name)) is not None]
    if table is None or len(known) < len(columns) or not known:
        return None
    return min(table.rows * (1 - one.nulls) / max(one.distinct, 1) for one in known)


def index_bytes(statistics: Statistics, index: LookupIndex) -> float | None:
    """Return the size that an index would have."""
    table = statistics.get(index.relation)
    if table is None:
        return None
    if index.hashed:
        return table.rows * (_ENTRY + _HASH) / _FILLED
    widths = [table.columns.get(name) for name in (*index.columns, *index.included)]
    known = [one.width for one in widths if one is not None]
    return None if len(known) < len(widths) else table.rows * (_ENTRY + sum(known)) / _FILLED


@dataclass(frozen=True, slots=True)
class Joined:
    """An input that is looked up for the rows before it: by its key, by columns, or as a whole (no columns).

    `rows` is how many rows there are for each.
    """

    input: Input
    columns: tuple[str, ...]
    keyed: bool
    rows: float | None


def lookups_from(stage: Stage, of: Mapping[str, Relation], statistics: Statistics, first: str) -> tuple[Joined, ...]:
    """Return the inputs that a changed row of the input `first` looks up so that a row of the result changes, in order.

    These are the inputs that the driver's group joins, and those that are joined to it INNER or LEFT.
    """
    core = stage.joins[0]
    groups = [
        join
        for join in stage.joins
        if join is core or join.kind in _MULTIPLIES or any(one.alias == first for one in join.inputs)
    ]
    equalities, known = Equalities(stage), {first}
    left = {one.alias: one for join in groups for one in join.inputs if one.alias != first}
    # An input is judged again when something that it is equated with becomes known: all of 64 took 11 s.
    judged = {alias: _joined(equalities, of, statistics, one, known) for alias, one in left.items()}
    found: list[Joined] = []
    while judged:
        chosen = min(judged.values(), key=lambda one: (not one.keyed, not one.columns)).input.alias
        found.append(judged.pop(chosen))
        known.add(chosen)
        judged |= {
            alias: _joined(equalities, of, statistics, left[alias], known)
            for alias in judged
            if chosen in equalities.read.get(alias, ())
        }
    return tuple(found)


def _joined(
    equalities: Equalities, of: Mapping[str, Relation], statistics: Statistics, one: Input, known: set[str]
) -> Joined:
    relation = of[one.alias]
    if equalities.by_key(of, one.alias, known) is not None:
        return Joined(one, tuple(part.name for part in relation.key), keyed=True, rows=1)
    columns = tuple(sorted({column for column, _ in equalities.with_inputs(one.alias, known)}))
    if columns:
        return Joined(one, columns, keyed=False, rows=rows_per_value(statistics, relation.id, columns))
    table = statistics.get(relation.id)
    return Joined(one, (), keyed=False, rows=None if table is None else table.rows)


def fan_out(lookups: Sequence[Joined]) -> float | None:
    """Return how many rows of a result one changed row changes. Each row that is looked up counts for itself."""
    total = 1.0
    for one in lookups:
        if one.rows is None:
            return None
        total *= max(one.rows, 1)
    return total


def part_rows(stage: Stage, statistics: Statistics) -> float | None:
    """Return how many rows of the input a part has that is computed again."""
    assert stage.partition is not None
    relation = stage.driver.relation
    if stage.partition.columns:
        return rows_per_value(statistics, relation, stage.partition.columns)
    table = statistics.get(relation)
    return None if table is None else table.rows
