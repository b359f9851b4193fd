"""Check that a publication publishes every change of the followed tables, and always did.

Postgres decodes a change with the catalog as of its commit. A change that was not published then is missing. It does
not suffice that a table is fully published now: its entry in the publication must be the one from the start. Missing
changes cannot be detected in the log, so a table in doubt is no longer followed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from service.protocol.cdc import Published, published_postgres
from workers.cdc.connecting import AwayError, HeldUpError
from workers.cdc.external import ask
from workers.cdc.keys import ExternalTable

_CHANGES: Final = ("insert", "update", "delete", "truncate")
_OPTIONS: Final = (
    "select array[pubinsert, pubupdate, pubdelete, pubtruncate], pubviaroot from pg_publication where pubname = $1"
)


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


def unpublished(
    control: psycopg.Connection, publication: str, tables: Sequence[ExternalTable], seen: Sequence[set[str]]
) -> list[str | None]:
    """Return for each table why the publication does not publish all of its changes, None where it does.

    `seen` are each table's partitions that were attached later. New ones are added to it. Raises AwayError.
    """
    options = ask(control, _OPTIONS, [publication])
    if not options:
        raise AwayError(f'the publication "{publication}" was dropped')
    ((changes, via_root),) = options
    lacks = tuple(change for change, there in zip(_CHANGES, changes, strict=True) if not there)
    names = [[table.named[part] for table in tables] for part in (0, 1)]
    try:
        found = ask(control, published_postgres(control.info.server_version), [publication, *names])
    except HeldUpError as error:
        # From Postgres 16 on, the query opens every table of the publication, so a lock on any of them blocks it.
        raise AwayError(f'of a table that "{publication}" publishes: {error}') from error
    places = {
        (schema, name): Place(
            Published(system=None, table=oid, publication=row, entries=tuple(entries), partitions=tuple(partitions)),
            filtered=condition is not None,
            columns=None if columns is None else frozenset(columns),
        )
        for schema, name, oid, row, entries, partitions, condition, columns in found
    }
    of = Publication(publication, lacks, via_root)
    return [
        why_not(table, of, places.get(table.named))
        or _partitions_changed(control, table, places[table.named].now.partitions, known)
        for table, known in zip(tables, seen, strict=True)
    ]


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
    for column in table.scan.columns:
        if place.columns is not None and column.external not in place.columns:
            return f'{name} leaves out its column "{column.external}"'
    return None if table.scan.published is None else _what_changed(table.scan.published, place.now, name)


def _what_changed(before: Published, now: Published, name: str) -> str | None:
    if before.table != now.table:
        return "it was dropped and made again, or another table has its name now"
    if before.publication != now.publication:
        return f"{name} was altered or made anew, and may not have published everything meanwhile"
    if before.entries and not set(before.entries) & set(now.entries):
        return f"it was taken out of {name} and added again"
    return None


def _partitions_changed(
    control: psycopg.Connection, table: ExternalTable, now: Sequence[str], seen: set[str]
) -> str | None:
    """Return a reason where a partition was attached or detached with rows whose changes the log lacks, else None."""
    if table.scan.published is None:
        return None
    before = seen.union(table.scan.published.partitions)
    if not before <= set(now):
        return "a partition of it was detached or dropped, whose rows the log does not tell of"
    for partition in sorted(set(now) - before):
        oid = partition.partition(":")[0]
        found = ask(control, "select oid::regclass::text from pg_class where oid = $1::oid", [oid])
        if found and ask(control, _brought(str(found[0][0])), [oid]) != [(False,)]:
            return f"partition {found[0][0]} was attached with rows that the log does not tell of"
        seen.add(partition)
    return None


def _brought(partition: str) -> str:
    """Return the query for whether a partition has rows that are older than its attachment to the table."""
    return (
        f"select exists (select from only {partition} r where age(r.xmin) > (select min(age(i.xmin))"
        " from pg_partition_ancestors($1::oid) a join pg_inherits i on i.inhrelid = a.relid))"
    )
