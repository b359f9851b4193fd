"""Run `POST /v1/sources/check`: check every requirement of CDC, and return SQL that provides what is missing."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    at = Address("", parsed.place, conninfo(parsed, password), world.hosts)
    try:
        async with evenly(world):
            facts = await world.servers.server(at)
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
            publication = await self.world.external.publication(self.at, options.publication)
        return (
            CheckItem("reachable", "Connection", ok=True, detail=f"{options.place} answers as {options.username}"),
            *_server(options, self.facts, makes_publication=publication is None),
            *_publication(options, publication),
            *await self._slot(),
            *[await self._table(publication, name) for name in tables],
            _cost(self.facts),
        )

    async def _slot(self) -> list[CheckItem]:
        if self.options.slot is None:
            return []
        found = await self.world.servers.slot(self.at, self.options.slot)
        said = "exists: a source makes its own" if found is not None else "is free"
        detail = f'the name of slot "{self.options.slot}" {said}'
        return [CheckItem("slot.name", "Replication slot", found is None, detail)]

    async def _table(self, publication: Publication | None, name: str) -> CheckItem:
        """Check whether a followed table with all columns could be created, as `CREATE TABLE t (*)` does."""
        item, label, options = f"table {name}", f"Table {name}", self.options
        schema, table_name = external_name(name)
        table = await self.world.external.table(self.at, schema or options.schema, table_name)
        if table is None:
            missing = f'table "{schema or options.schema}.{table_name}" does not exist'
            return CheckItem(item, label, ok=False, detail=missing)
        try:
            shape = follower(table, publication, None, ())
        except Invalid as error:
            sql = None if table.selectable or table.why_not is not None else _selectable(options, table)
            return CheckItem(item, label, ok=False, detail=error.message, sql=sql)
        of = publication or Publication("the one that is made")
        if why := why_not_published(table, of, may_add=options.create_publication):
            sql = None if publication is None else _published(publication, table)
            return CheckItem(item, label, ok=False, detail=why, sql=sql)
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


def _publication(options: SourceOptions, found: Publication | None) -> list[CheckItem]:
    if options.publication is None or (found is None and options.create_publication):
        return []
    item, label, name = "publication.name", "Publication", _quoted(options.publication)
    if found is None:
        detail = f'publication "{options.publication}" does not exist, and publication.create.enable is false'
        sql = f"CREATE PUBLICATION {name} WITH (publish_via_partition_root = true);"
        return [CheckItem(item, label, ok=False, detail=detail, sql=sql)]
    if found.lacks:
        detail = f'publication "{found.name}" does not publish {", ".join(found.lacks)}'
        sql = f"ALTER PUBLICATION {name} SET (publish = '{_PUBLISHED}');"
        return [CheckItem(item, label, ok=False, detail=detail, sql=sql)]
    return [CheckItem(item, label, ok=True, detail=f'publication "{found.name}" exists, and is used as it is')]


def _selectable(options: SourceOptions, table: ExternalTable) -> str:
    schema, login = _quoted(table.schema), _quoted(options.username)
    return (
        f"GRANT USAGE ON SCHEMA {schema} TO {login}; GRANT SELECT ON TABLE {schema}.{_quoted(table.name)} TO {login};"
    )


def _published(publication: Publication, table: ExternalTable) -> str:
    """Return the SQL that makes a publication publish all changes of a table."""
    name, of = _quoted(publication.name), f"{_quoted(table.schema)}.{_quoted(table.name)}"
    if publication.lacks:
        return f"ALTER PUBLICATION {name} SET (publish = '{_PUBLISHED}');"
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
