"""Run `POST /v1/sources/check`: check every requirement of CDC, and return SQL that provides what is missing."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from service.domain.errors import Invalid, MetaError
from service.domain.external import ExternalTable, Publication, follower, why_not_published
from service.domain.source import SourceOptions, conninfo, source_options
from service.operations.sources.registry import evenly, refusals
from service.operations.world import World
from service.ports.sources import Address, ServerFacts
from service.sql.statements.follow import external_name

LONGEST: Final = timedelta(seconds=60)
"""The longest total time of a check."""
OWN_NAME: Final = "tidefill"
"""The name of a publication that an administrator makes for a source whose options name none."""
_PUBLISHED: Final = "insert, update, delete, truncate"
_LABELS: Final = {
    "version": "Postgres version",
    "primary": "Primary server",
    "wal_level": "Logical decoding (wal_level)",
    "replication": "Replication privilege",
    "publication": "Making a publication",
    "slots": "Free replication slots",
}


@dataclass(frozen=True, slots=True)
class CheckItem:
    """One requirement of CDC and whether it is met. `item` is a stable name for programs, `label` a text for people.
    `sql` meets the requirement when an administrator runs it in the external database. It is null if nothing is to be
    done or if SQL cannot do it. An optional item is ok and may still have SQL.
    """

    item: str
    label: str
    ok: bool
    detail: str
    sql: str | None = None


async def check(
    world: World, options: Mapping[str, str], password: str, tables: Sequence[str]
) -> tuple[CheckItem, ...]:
    """Check all requirements for CDC of these tables, without creating anything. Raises Invalid for invalid options."""
    parsed = source_options(options)
    at = Address("", parsed.place, conninfo(parsed, password), world.external.hosts)
    try:
        async with evenly(world):
            facts = await world.external.servers.server(at)
        async with asyncio.timeout(LONGEST.total_seconds()):
            return await _Check(world, at, parsed, facts).items(tables)
    except MetaError as error:
        return (CheckItem("reachable", "Connection", ok=False, detail=error.message),)
    except TimeoutError:
        detail = f"the check took more than {LONGEST.total_seconds():.0f} s: check fewer tables at once"
        return (CheckItem("time", "Time", ok=False, detail=detail),)


@dataclass(frozen=True, slots=True)
class _Check:
    world: World
    at: Address
    options: SourceOptions
    facts: ServerFacts

    async def items(self, tables: Sequence[str]) -> tuple[CheckItem, ...]:
        options, publication = self.options, None
        if options.publication is not None:
            publication = await self.world.external.catalog.publication(self.at, options.publication)
        found = {name: await self._external(name) for name in tables}
        external = [table for table in found.values() if table is not None]
        # A publication that an administrator has to make needs no right of the login.
        makes_publication = publication is None and not any(_unmade(options, external))
        return (
            CheckItem("reachable", "Connection", ok=True, detail=f"{options.place} answers as {options.username}"),
            *_server(options, self.facts, makes_publication=makes_publication),
            *_publication(options, publication, external),
            *await self._slot(),
            *[self._table(publication, name, table) for name, table in found.items()],
            _cost(self.facts),
        )

    async def _external(self, name: str) -> ExternalTable | None:
        schema, table_name = external_name(name)
        return await self.world.external.catalog.table(self.at, schema or self.options.schema, table_name)

    async def _slot(self) -> list[CheckItem]:
        if self.options.slot is None:
            return []
        found = await self.world.external.servers.slot(self.at, self.options.slot)
        said = "exists: a source makes its own" if found is not None else "is free"
        detail = f'the name of slot "{self.options.slot}" {said}'
        return [CheckItem("slot.name", "Replication slot", found is None, detail)]

    def _table(self, publication: Publication | None, name: str, table: ExternalTable | None) -> CheckItem:
        """Check whether a followed table with all columns could be created, as `CREATE TABLE t (*)` does.

        Every fault is told, each with its SQL.
        """
        item, label, options = f"table {name}", f"Table {name}", self.options
        if table is None:
            schema, table_name = external_name(name)
            missing = f'table "{schema or options.schema}.{table_name}" does not exist'
            return CheckItem(item, label, ok=False, detail=missing)
        faults: list[tuple[str, str | None]] = []
        if table.why_not is None and not table.selectable:
            faults.append(("the login may not SELECT from it", _selectable(options, table)))
        try:
            shape = follower(replace(table, selectable=True), publication, None, ())
        except Invalid as error:
            shape = None
            faults.append((error.message, None))
        if table.why_not is None:
            faults += _unpublished(publication, table, may_add=options.create_publication)
        if faults or shape is None:
            sqls = [sql for _, sql in faults if sql is not None]
            why = "; ".join(said for said, _ in faults)
            return CheckItem(item, label, ok=False, detail=why, sql=" ".join(sqls) or None)
        key = ", ".join(part.name for part in shape.key)
        about = "an unknown number of" if table.rows is None else f"about {table.rows}"
        detail = f"{about} rows, key ({key}), {len(shape.carried)} columns{_left_out(table)}"
        return CheckItem(item, label, ok=True, detail=detail)


def _server(options: SourceOptions, facts: ServerFacts, *, makes_publication: bool) -> list[CheckItem]:
    wrong = dict(refusals(facts, makes_publication=makes_publication))
    fine = {
        "version": f"Postgres {facts.version}",
        "primary": "it is the server that writes",
        "wal_level": f"wal_level is {facts.wal_level}",
        "replication": "the login may replicate",
        "publication": "the login may make a publication" if makes_publication else "none has to be made",
        "slots": f"{facts.slots_max - facts.slots} of {facts.slots_max} replication slots are free",
    }
    login = _quoted(options.username)
    mends = {
        "wal_level": "ALTER SYSTEM SET wal_level = logical; -- then restart the server",
        "replication": f"ALTER ROLE {login} REPLICATION;",
        "publication": f"GRANT CREATE ON DATABASE {_quoted(options.database)} TO {login};",
        "slots": f"ALTER SYSTEM SET max_replication_slots = {facts.slots_max + 10}; -- then restart the server",
    }
    if "publication" in wrong:
        wrong["publication"] += (
            ". Or an administrator makes the publication: name it in publication.name, with "
            "publication.create.enable = false"
        )
    items = [
        CheckItem(item, _LABELS[item], ok=False, detail=wrong[item], sql=mends.get(item))
        if item in wrong
        else CheckItem(item, _LABELS[item], ok=True, detail=said)
        for item, said in fine.items()
    ]
    return [*items, _monitoring(facts, login)]


def _monitoring(facts: ServerFacts, login: str) -> CheckItem:
    """Check whether the login sees other sessions. CDC does not need this."""
    label = "Activity of other sessions (optional)"
    detail = "backfill_rate_limit = 'auto' can slow down when other queries run there"
    if facts.monitors:
        return CheckItem("monitoring", label, ok=True, detail=detail)
    lacks = "not visible to the login, so backfill_rate_limit = 'auto' does not slow down for other queries"
    return CheckItem("monitoring", label, ok=True, detail=lacks, sql=f"GRANT pg_read_all_stats TO {login};")


def _publication(options: SourceOptions, found: Publication | None, tables: Sequence[ExternalTable]) -> list[CheckItem]:
    item, label = "publication.name", "Publication"
    if found is None:
        return [CheckItem(item, label, ok=False, detail=why, sql=sql) for why, sql in _unmade(options, tables)]
    name = _quoted(found.name)
    if found.lacks:
        detail = f'publication "{found.name}" does not publish {", ".join(found.lacks)}'
        sql = f"ALTER PUBLICATION {name} SET (publish = '{_PUBLISHED}');"
        return [CheckItem(item, label, ok=False, detail=detail, sql=sql)]
    return [CheckItem(item, label, ok=True, detail=f'publication "{found.name}" exists, and is used as it is')]


def _unmade(options: SourceOptions, tables: Sequence[ExternalTable]) -> Iterator[tuple[str, str]]:
    """Yield why the source cannot make its publication with these tables, if so, and the SQL that makes it."""
    if not options.create_publication:
        name = OWN_NAME if options.publication is None else options.publication
        why = f'publication "{name}" does not exist, and publication.create.enable is false'
    elif any(not table.owned for table in tables):
        name = options.publication or OWN_NAME
        why = (
            "the login does not own all tables, and only their owner or a superuser can publish them. An administrator "
            f"makes the publication: then set publication.name = '{name}' and publication.create.enable = false"
        )
    else:
        return
    of = ", ".join(f"{_quoted(table.schema)}.{_quoted(table.name)}" for table in tables if table.why_not is None)
    which = f" FOR TABLE {of}" if of else ""
    made = f"CREATE PUBLICATION {_quoted(name)}{which} WITH (publish_via_partition_root = true);"
    yield why, f"{made} -- then set publication.name = '{name}' and publication.create.enable = false"


def _unpublished(
    publication: Publication | None, table: ExternalTable, *, may_add: bool
) -> Iterator[tuple[str, str | None]]:
    """Yield all reasons for which changes of a table would be missing, each with the SQL that ends it."""
    if publication is None:
        if may_add and not table.owned:
            yield f'only the owner of "{table.shown}" can publish it', None
        return
    # The item of the publication tells what it lacks for every table.
    at, named = replace(publication, lacks=()), (table.schema, table.name)
    while why := why_not_published(table, at, may_add=may_add):
        yield why, _published(at, table)
        if table.partitioned and not at.via_root:
            at = replace(at, via_root=True)
        elif named in at.partial:
            at = replace(at, partial=at.partial - {named}, tables=at.tables | {named})
        else:
            return


def _selectable(options: SourceOptions, table: ExternalTable) -> str:
    schema, login = _quoted(table.schema), _quoted(options.username)
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {login}; GRANT SELECT ON TABLE {schema}.{_quoted(table.name)} TO {login};"
    )


def _published(publication: Publication, table: ExternalTable) -> str:
    """Return the SQL for the first reason of `why_not_published`."""
    name, of = _quoted(publication.name), f"{_quoted(table.schema)}.{_quoted(table.name)}"
    if table.partitioned and not publication.via_root:
        return f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true);"
    if (table.schema, table.name) in publication.partial:
        return f"ALTER PUBLICATION {name} DROP TABLE {of}; ALTER PUBLICATION {name} ADD TABLE {of};"
    return f"ALTER PUBLICATION {name} ADD TABLE {of};"


def _left_out(table: ExternalTable) -> str:
    names = ", ".join(one.name for one in table.columns if one.generated)
    return f"; generated ones are left out: {names}" if names else ""


def _cost(facts: ServerFacts) -> CheckItem:
    """Describe the cost of decoding. This item is always ok and informs the user beforehand."""
    detail = (
        "every epoch decodes the log in the external database: a transaction is held there whole until it is decoded, "
        "in memory up to logical_decoding_work_mem and on disk beyond; the slot keeps the log until then"
    )
    if facts.spilled is not None:
        spilled, transactions = facts.spilled
        detail += f". The slot that spilled most so far wrote {spilled} bytes of {transactions} transactions to disk"
    return CheckItem("decoding", "Cost of decoding", ok=True, detail=detail)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
