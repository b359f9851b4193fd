"""Print what a view of stages costs, as far as the statistics of the state store tell: sizes, fan-out and warnings."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from service.domain.fan_out import (
    INDEXES_MAX,
    MANY,
    Joined,
    Statistics,
    TableStatistics,
    fan_out,
    index_bytes,
    lookups_from,
    part_rows,
)
from service.protocol.barrier import ScanLimits
from service.protocol.ids import RelationId
from service.protocol.relation import Relation
from service.protocol.stage import Input, LookupIndex, Stage

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Known:
    """The statistics of users' relations, the lookup indexes that each of them has, with their sizes in bytes, and from
    how many rows on Spark computes.
    """

    statistics: Statistics = field(default_factory=dict[RelationId, TableStatistics])
    indexes: Mapping[LookupIndex, int | None] = field(default_factory=dict[LookupIndex, int | None])
    limits: ScanLimits = field(default_factory=ScanLimits)


def rows_of(known: Known, relation: RelationId) -> str:
    """Return the number of rows of a relation in words."""
    table = known.statistics.get(relation)
    return _about(None if table is None else table.rows, "row")


def index_state(known: Known, index: LookupIndex, missing: Collection[LookupIndex]) -> str:
    """Return whether an index exists, and its size."""
    if index.relation < 0:
        return "made with its table"
    if index in missing:
        return f"to be built, {_size(index_bytes(known.statistics, index))}"
    sizes = [size for one, size in known.indexes.items() if one.serves(index)]
    return f"exists, {_size(next(iter(sizes), None))}"


def costs(stage: Stage, relations: Mapping[RelationId, Relation], known: Known) -> Iterator[str]:
    """Yield a line for each input of a stage: what it looks up, and what it changes, when one of its rows changes."""
    if stage.partition is not None:
        yield f"one changed row: computes a part of {_about(part_rows(stage, known.statistics), 'row')} again"
        return
    for one, found in _looked_up(stage, relations, known):
        looked_up = "; ".join(_looks_up(each, relations) for each in found)
        verb = "rewrites" if stage.aggregate is None else "adds to the sums of"
        what = "row" if stage.aggregate is None else "group"
        name = f"{relations[one.relation].name} {one.alias}"
        yield f"one changed row of {name}: {f'looks up {looked_up}; ' if found else ''}{verb} {_most(found, what)}"


def warnings(
    stages: Sequence[Stage],
    relations: Mapping[RelationId, Relation],
    needed: Collection[LookupIndex],
    known: Known,
) -> Iterator[str]:
    """Yield what makes a view expensive."""
    for stage in stages:
        if stage.partition is not None:
            rows = part_rows(stage, known.statistics)
            if rows is not None and rows > MANY:
                name = relations[stage.driver.relation].name
                yield f"Warning: each change of {name} computes a part of {_about(rows, 'row')} again"
            continue
        for one, found in _looked_up(stage, relations, known):
            rows = fan_out(found)
            if rows is not None and rows > MANY and stage.aggregate is None:
                name = relations[one.relation].name
                yield (
                    f"Warning: columns of {name} in {_largest(found, relations, known)}: one changed row rewrites"
                    f" {_about(rows, 'row')}. A logical view that joins {name} rewrites none"
                )
    for relation in sorted({one.relation for one in needed if one.relation > 0}):
        there = [one for one in known.indexes if one.relation == relation]
        new = [one for one in needed if one.relation == relation and not any(each.serves(one) for each in there)]
        if len(there) + len(new) > INDEXES_MAX:
            name = relations[relation].name
            yield f"Warning: {name} has {len(there) + len(new)} lookup indexes: every change of a row writes to each"


def _looked_up(
    stage: Stage, relations: Mapping[RelationId, Relation], known: Known
) -> Iterator[tuple[Input, Sequence[Joined]]]:
    of = {one.alias: relations[one.relation] for one in stage.inputs}
    for one in stage.inputs:
        yield one, lookups_from(stage, of, known.statistics, one.alias)


def _looks_up(one: Joined, relations: Mapping[RelationId, Relation]) -> str:
    name = f"{relations[one.input.relation].name} {one.input.alias}"
    if one.keyed:
        return f"{name} by its key"
    if one.columns:
        return f"{name} by ({', '.join(one.columns)}), {_about(one.rows, 'row')}"
    return f"all of {name}, {_about(one.rows, 'row')}"


def _largest(found: Sequence[Joined], relations: Mapping[RelationId, Relation], known: Known) -> str:
    """Return the largest of the relations that are looked up, in words."""
    tables = [(known.statistics[one.input.relation].rows, relations[one.input.relation].name) for one in found]
    rows, name = max(tables)
    return f"{_about(rows, 'row')} of {name}"


def _most(found: Sequence[Joined], what: str) -> str:
    rows = fan_out(found)
    return f"an {UNKNOWN} number of {what}s" if rows is None else f"at most {_about(rows, what)}"


def _about(number: float | None, what: str) -> str:
    if number is None:
        return f"{UNKNOWN} {what}s"
    if number <= 1:
        return f"1 {what}" if number > 0 else f"no {what}s"
    return f"about {_rounded(number):,} {what}s"


def _size(number: float | None) -> str:
    if number is None:
        return f"{UNKNOWN} size"
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if number >= size:
            return f"about {_rounded(number / size):,} {unit}"
    return "below 1 kB"


def _rounded(number: float) -> int:
    """Return a number with two digits that count: an estimate knows no more."""
    whole = round(number)
    return round(whole, 2 - len(str(whole)))
