"""Check that a publication publishes every change of the followed tables, and that their columns are the same ones.

Postgres decodes a change with the catalog as of its commit. A change that was not published then is missing. It does
not suffice that a table is fully published now: its entry in the publication must be the one from the start. Missing
changes cannot be detected in the log, so a table in doubt is no longer followed. `workers.cdc.drift` decides about the
columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import psycopg

from service.protocol.cdc import ExternalColumn, Published, Shape, published_of, published_postgres
from workers.cdc.connecting import AwayError, HeldUpError
from workers.cdc.drift import drift, rewritten
from workers.cdc.external import ask
from workers.cdc.keys import ExternalTable

_CHANGES: Final = ("insert", "update", "delete", "truncate")
_OPTIONS: Final = (
    "select array[pubinsert, pubupdate, pubdelete, pubtruncate], pubviaroot from pg_publication where pubname = $1"
)


_SAMPLED: Final = 1000
"""How many rows are read to find one that is older than a suspected rewrite. A rewrite leaves none."""


@dataclass
class Watch:
    """How a table was published at the offset, and at later looks.

    The log between the offset and a look may have been written before or after a change that the look shows.
    """

    at_offset: Published | None
    """None where it is unknown."""
    looks: list[Published] = field(default_factory=list[Published])
    """Later looks that showed something new."""

    @property
    def now(self) -> Published | None:
        """How the table was published at the last look."""
        return self.looks[-1] if self.looks else self.at_offset

    def saw(self, published: Published) -> None:
        """Accept what a look has shown."""
        before = self.now
        if before is not None:
            published = published.model_copy(update={"system": before.system})
        if before is None or before.shape is None:
            self.at_offset = published
        elif published.model_copy(update={"end": before.end}) != before:
            self.looks.append(published)

    def reached(self, offset: int) -> None:
        """Forget the looks before the offset, except for the last one."""
        while self.looks and self.looks[0].end <= offset:
            self.at_offset = self.looks.pop(0)


@dataclass(frozen=True, slots=True)
class Watched:
    """A followed table to look at. `ordered` are the columns by whose collation history is still being read."""

    table: ExternalTable
    watch: Watch
    ordered: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Publication:
    """The options of a publication: `lacks` are the kinds of changes that it does not publish.

    `via_root`: it publishes changes of partitions as changes of their root.
    """

    name: str
    lacks: tuple[str, ...]
    via_root: bool


@dataclass(frozen=True, slots=True)
class Place:
    """The entry of a table in a publication. `columns` are the published ones. None: all of them."""

    now: Published
    filtered: bool
    columns: frozenset[str] | None


def look(control: psycopg.Connection, publication: str, tables: Sequence[Watched]) -> list[str | None]:
    """Return for each table why it cannot be followed any more, None where it can. Then its watch has the look.

    Raises AwayError.
    """
    options = ask(control, _OPTIONS, [publication])
    if not options:
        raise AwayError(f'the publication "{publication}" was dropped')
    ((changes, via_root),) = options
    lacks = tuple(change for change, there in zip(_CHANGES, changes, strict=True) if not there)
    names = [[one.table.named[part] for one in tables] for part in (0, 1)]
    known = {shape.digest: shape for one in tables if (shape := _shape(one.watch.now)) is not None}
    try:
        found = ask(control, published_postgres(control.info.server_version), [publication, *names, list(known)])
    except HeldUpError as error:
        # From Postgres 16 on, the query opens every table of the publication, so a lock on any of them blocks it.
        raise AwayError(f'of a table that "{publication}" publishes: {error}') from error
    places: dict[tuple[str, str], Place] = {}
    for row in found:
        schema, name, *_, condition, columns, _, _, _ = row
        sent = None if columns is None else frozenset(columns)
        now = published_of(row, None, known)
        places[schema, name] = Place(now, filtered=condition is not None, columns=sent)
    of = Publication(publication, lacks, via_root)
    return [_looked_at(control, one, of, places.get(one.table.named)) for one in tables]


def _looked_at(control: psycopg.Connection, one: Watched, publication: Publication, place: Place | None) -> str | None:
    reason, before = why_not(one.table, publication, place), one.watch.now
    if reason is not None or place is None:
        return reason
    if before is not None and before.table != place.now.table:
        return "it was dropped and made again, or another table has its name now"
    # The columns come first, because a change of them may also have changed the entry in the publication.
    reason = (
        _columns_changed(control, one, place.now)
        or left_out(one.table, publication, place)
        or (None if before is None else _what_changed(before, place.now, publication))
        or _partitions_changed(control, before, place.now.partitions)
    )
    if reason is None:
        one.watch.saw(place.now)
    return reason


def why_not(table: ExternalTable, publication: Publication, place: Place | None) -> str | None:
    """Return why a publication does not publish every change of a table, None where it does. Pure."""
    name = f'the publication "{publication.name}"'
    if place is None:
        return f"it is not in {name} any more"
    if publication.lacks:
        return f"{name} does not publish {', '.join(publication.lacks)} any more"
    if table.partitioned and not publication.via_root:
        return f"{name} publishes its partitions, and not itself, any more"
    if place.filtered:
        return f"{name} leaves out rows of it"
    return None


def left_out(table: ExternalTable, publication: Publication, place: Place) -> str | None:
    """Return which followed column a publication leaves out, None where it has all. Pure."""
    columns = table.scan.columns if place.columns is not None else ()
    omitted = [column.external for column in columns if column.external not in (place.columns or ())]
    return f'the publication "{publication.name}" leaves out its column "{omitted[0]}"' if omitted else None


def _what_changed(before: Published, now: Published, publication: Publication) -> str | None:
    name = f'the publication "{publication.name}"'
    if before.publication != now.publication:
        return f"{name} was altered or made anew, and may not have published everything meanwhile"
    if before.entries and not set(before.entries) & set(now.entries):
        return f"it was taken out of {name} and added again"
    return None


def _columns_changed(control: psycopg.Connection, one: Watched, now: Published) -> str | None:
    """Return how a followed column was replaced or rewritten, None where all are as they were."""
    assert now.shape is not None
    found = drift(one.table.scan.columns, _shape(one.watch.now) or now.shape, now.shape, ordered=one.ordered)
    if found.reason is not None:
        return found.reason
    return next((rewritten(column) for column in found.doubted if _is_rewritten(control, one.table, column)), None)


def _is_rewritten(control: psycopg.Connection, table: ExternalTable, column: ExternalColumn) -> bool:
    """Return whether no row is older than the column's alteration. A table without rows has no old value either."""
    ((rows, older),) = ask(
        control,
        "select count(*), bool_or(age(r.xmin) > age($1::xid))"
        f" from (select t.xmin from {table.rows} limit {_SAMPLED}) r",
        [column.version],
    )
    return rows > 0 and not older


def _partitions_changed(control: psycopg.Connection, before: Published | None, now: Sequence[str]) -> str | None:
    """Return a reason where a partition was attached or detached with rows whose changes the log lacks, else None."""
    if before is None:
        return None
    if not set(before.partitions) <= set(now):
        return "a partition of it was detached or dropped, whose rows the log does not tell of"
    for partition in sorted(set(now) - set(before.partitions)):
        oid = partition.partition(":")[0]
        found = ask(control, "select oid::regclass::text from pg_class where oid = $1::oid", [oid])
        if found and ask(control, _brought(str(found[0][0])), [oid]) != [(False,)]:
            return f"partition {found[0][0]} was attached with rows that the log does not tell of"
    return None


def _shape(published: Published | None) -> Shape | None:
    return None if published is None else published.shape


def _brought(partition: str) -> str:
    """Return the query for whether a partition has rows that are older than its attachment to the table."""
    return (
        f"select exists (select from only {partition} r where age(r.xmin) > (select min(age(i.xmin))"
        " from pg_partition_ancestors($1::oid) a join pg_inherits i on i.inhrelid = a.relid))"
    )
