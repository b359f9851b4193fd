"""One SQL statement: parse, bind, call the operation it stands for, and say what came of it.

The service keeps no session: SET answers with the new map of variables, and the client sends it back next time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, assert_never

from service.domain.dml import sliced
from service.domain.errors import Invalid, NotFound
from service.domain.parallelism import DEFAULT
from service.domain.parameters import SESSION_DEFAULTS, SystemParameters, bounded, parse_session_variable
from service.operations import parameters
from service.operations.commands import limits, mutations
from service.operations.jobs import lifecycle, rescaling
from service.operations.jobs.standing import progress_of
from service.operations.leaving import Gone, unless
from service.operations.naming import internal_tables, named, relation_names
from service.operations.offload import beside, bound_insert, parsed
from service.operations.rows import dml
from service.operations.sources import create_table, registry, secrets
from service.operations.statements import configuration, ddl, logical_views
from service.operations.statements.outcome import Outcome
from service.operations.status.listing import listed
from service.operations.status.staleness import notices_of
from service.operations.world import World
from service.ports.records import CatalogEntry, Claim, LogicalView
from service.protocol.dml import Delete, InsertValues, Update
from service.protocol.relation import RelationKind
from service.sql.dml.bind import BoundInsert, bind_delete, bind_update
from service.sql.statements import ast as s
from service.sql.statements.ast import wrong_kind
from service.sql.statements.select import CATALOG_PREFIX
from service.sql.text.tokens import mentioned
from service.sql.views.backfill_order import dot

WAIT_LIMIT: Final = timedelta(hours=2)
Listing = s.ShowRelations | s.ShowInternalTables | s.ShowSecrets | s.ShowJobs

RECOVERING: Final = "the recovery goes on: rw_catalog.rw_recovery_info shows how"
_DESCRIBED: Final = (("Name", "text"), ("Type", "text"), ("Is Hidden", "text"), ("Description", "text"))


async def run(
    world: World,
    text: str,
    *,
    session: Mapping[str, str],
    asked_by: str,
    claim: Claim | None = None,
    gone: Gone | None = None,
) -> Outcome:
    """Run one statement; a change is tied to `claim`. A query, or the wait for a job, ends when its caller is `gone`.
    Raises domain errors with the position of the fault in `text`, where it has one.
    """
    checked = {name: parse_session_variable(name, value) for name, value in session.items()}
    call = _Call(world, text, checked, asked_by, claim, gone)
    outcome = await call.run(await parsed(world.parsers, text))
    return outcome if outcome.session else replace(outcome, session=checked)


@dataclass(frozen=True, slots=True)
class _Call:
    world: World
    text: str
    session: Mapping[str, str]
    asked_by: str
    claim: Claim | None
    gone: Gone | None

    async def run(self, statement: s.Statement) -> Outcome:
        match statement:
            case s.Select():
                return await self._select(statement)
            case s.Insert() | s.Update() | s.Delete():
                return await self._change(statement)
            case s.CreateTable() | s.CreateTableFrom() | s.CreateMaterializedView() | s.CreateView() | s.Drop():
                return await self._define(statement)
            case s.CreateSource() | s.CreateSecret() | s.AlterSecret() | s.DropSecret():
                return await self._connect(statement)
            case s.SetVariable() | s.ShowVariable() | s.AlterSystem() | s.ShowParameters():
                return await configuration.run(self.world, statement, self.session, asked_by=self.asked_by)
            case (
                s.ShowRelations()
                | s.ShowJobs()
                | s.ShowInternalTables()
                | s.ShowSecrets()
                | s.Describe()
                | s.ShowCreate()
            ):
                return await self._show(statement)
            case s.Explain() | s.ExplainBackfill():
                return await self._explain(statement)
            case _:
                return await self._control(statement)

    async def _select(self, statement: s.Select) -> Outcome:
        catalog = statement.catalog
        async with self.world.stores.begin() as tx:
            for name in statement.relations:
                found = await named(tx, name)
                if found is not None and not found.readable:
                    raise found.unreadable
                # A name without a schema is a user's relation, and else one of the catalog.
                catalog = catalog or (found is None and name.startswith(CATALOG_PREFIX))
            known = SystemParameters.of(await tx.parameters.all())
            notices = await notices_of(tx, statement.relations)
        query = self.world.reader.query(
            statement.sql,
            row_limit=bounded("row_limit", self._variable("row_limit"), known),
            timeout_ms=bounded("statement_timeout", self._variable("statement_timeout"), known),
            catalog=catalog,
        )
        result = await unless(self.gone, query)
        tag = f"SELECT {len(result.rows)}"
        return Outcome(tag, result.columns, result.rows, notices=notices, truncated=result.truncated)

    async def _change(self, statement: s.Insert | s.Update | s.Delete) -> Outcome:
        try:
            return await self._changed(statement)
        except NotFound:
            if await self._view(statement.target) is not None:
                raise Invalid(f'cannot change view "{statement.target}"', position=statement.position) from None
            raise

    async def _changed(self, statement: s.Insert | s.Update | s.Delete) -> Outcome:
        relations = await dml.readable(self.world, mentioned(self.text), statement.target, position=statement.position)
        match statement:
            case s.Insert():
                insert = await bound_insert(self.world.parsers, self.text, statement, relations)
                rows = await self._insert(insert)
                return Outcome(f"INSERT 0 {rows}", notices=sliced(rows) if insert.source is None else ())
            case s.Update():
                bound = await beside(self.world.parsers, self.text, bind_update, statement, relations)
                update = Update(
                    id=await dml.reserve(self.world),
                    relation=bound.relation,
                    assignments=bound.assignments,
                    predicate=bound.predicate,
                )
                return Outcome(f"UPDATE {await dml.run(self.world, update, claim=self.claim)}")
            case s.Delete():
                found = await beside(self.world.parsers, self.text, bind_delete, statement, relations)
                delete = Delete(id=await dml.reserve(self.world), relation=found.relation, predicate=found.predicate)
                return Outcome(f"DELETE {await dml.run(self.world, delete, claim=self.claim)}")

    async def _insert(self, bound: BoundInsert) -> int:
        if bound.source is not None:
            insert = InsertValues(
                id=await dml.reserve(self.world), relation=bound.relation, columns=bound.columns, source=bound.source
            )
            return await dml.run(self.world, insert, claim=self.claim)
        assert bound.query is not None
        columns = [bound.relation.column(name) for name in bound.columns]
        return await dml.insert_query(self.world, bound.relation, columns, bound.query.sql, claim=self.claim)

    async def _define(
        self, statement: s.CreateTable | s.CreateTableFrom | s.CreateMaterializedView | s.CreateView | s.Drop
    ) -> Outcome:
        match statement:
            case s.CreateTableFrom():
                gone = self._leaves(statement)
                notices = await create_table.create_table(
                    self.world, statement, self.text, self.session, asked_by=self.asked_by, gone=gone
                )
                return await self._made(Outcome("CREATE_TABLE", notices=notices), statement.name)
            case s.CreateTable():
                gone = self._leaves(statement)
                created = await ddl.create_table(
                    self.world, statement, self.text, self.session, asked_by=self.asked_by, gone=gone
                )
                return await self._made(Outcome("CREATE_TABLE", notices=created.notices), statement.name)
            case s.CreateMaterializedView():
                gone = self._leaves(statement)
                created = await ddl.create_view(self.world, statement, self.session, asked_by=self.asked_by, gone=gone)
                return await self._made(Outcome("CREATE_MATERIALIZED_VIEW", notices=created.notices), statement.name)
            case s.CreateView():
                timeout_ms = bounded(
                    "statement_timeout", self._variable("statement_timeout"), await parameters.known(self.world)
                )
                return Outcome("CREATE_VIEW", notices=await logical_views.create(self.world, statement, timeout_ms))
            case s.Drop():
                return await self._drop(statement)

    async def _drop(self, statement: s.Drop) -> Outcome:
        kind, name = statement.kind, statement.name
        tag = f"DROP_{kind.upper().replace(' ', '_')}"
        try:
            concerned = await lifecycle.drop(self.world, name, kind, cascade=statement.cascade, asked_by=self.asked_by)
        except NotFound:
            # Known only here: of two drops at once one finds the name taken when it looks, and free when it removes.
            if not statement.if_exists or not await self._free(name):
                raise
            return Outcome(tag, notices=(f'{kind} "{name}" does not exist, skipping',))
        return Outcome(tag, notices=await registry.left_behind(self.world, concerned))

    async def _made(self, outcome: Outcome, name: str) -> Outcome:
        """Add the job of a relation that was asked for, and whether it goes on in the background."""
        entry = await self._named(name)
        if entry is None:
            return outcome  # somebody dropped it just now
        return replace(outcome, job=entry.job, background=not entry.shown)

    async def _connect(self, statement: s.CreateSource | s.CreateSecret | s.AlterSecret | s.DropSecret) -> Outcome:
        match statement:
            case s.CreateSource():
                notices = await registry.create(self.world, statement, asked_by=self.asked_by)
                return Outcome("CREATE_SOURCE", notices=notices)
            case s.CreateSecret(name=name, value=value, if_not_exists=if_not_exists):
                notices = await secrets.create(
                    self.world, name, value, if_not_exists=if_not_exists, asked_by=self.asked_by
                )
                return Outcome("CREATE_SECRET", notices=notices)
            case s.AlterSecret(name=name, value=value):
                await secrets.change(self.world, name, value, asked_by=self.asked_by)
                return Outcome("ALTER_SECRET")
            case s.DropSecret(name=name, if_exists=if_exists):
                notices = await secrets.drop(self.world, name, if_exists=if_exists, asked_by=self.asked_by)
                return Outcome("DROP_SECRET", notices=notices)

    async def _control(
        self,
        statement: s.AlterRateLimit
        | s.AlterParallelism
        | s.AlterFragmentRateLimit
        | s.CancelJobs
        | s.Flush
        | s.Wait
        | s.Recover,
    ) -> Outcome:
        match statement:
            case s.AlterRateLimit():
                return await self._alter_rate_limit(statement)
            case s.AlterParallelism():
                return await self._alter_parallelism(statement)
            case s.AlterFragmentRateLimit(fragment=fragment, limit=limit):
                command = await limits.throttle_fragment(self.world, fragment, limit, asked_by=self.asked_by)
                await mutations.applied(self.world, command)
                return Outcome("ALTER_FRAGMENT")
            case s.CancelJobs(ids=ids):
                cancelled = await lifecycle.cancel(self.world, ids, asked_by=self.asked_by)
                return Outcome("CANCEL_COMMAND", (("Id", "bigint"),), tuple((job,) for job in cancelled))
            case s.Flush():
                await mutations.flush(self.world, asked_by=self.asked_by)
                return Outcome("FLUSH")
            case s.Wait(kind=kind, name=name):
                await self._wait(kind, name)
                return Outcome("WAIT")
            case s.Recover():
                ended = await mutations.recover(self.world, asked_by=self.asked_by)
                over = await mutations.recovered(self.world, ended)
                return Outcome("RECOVER", notices=() if over else (RECOVERING,))
            case _:
                assert_never(statement)

    async def _alter_rate_limit(self, statement: s.AlterRateLimit) -> Outcome:
        entry = await self._existing(statement.name, statement.kind)
        if statement.kind is RelationKind.TABLE and not entry.follows:
            raise Invalid(f'"{statement.name}" is not a CDC table')
        command = await limits.throttle_job(self.world, entry.job, statement.limit, asked_by=self.asked_by)
        await mutations.applied(self.world, command)
        return Outcome(f"ALTER_{statement.kind.upper().replace(' ', '_')}")

    async def _alter_parallelism(self, statement: s.AlterParallelism) -> Outcome:
        entry = await self._existing(statement.name, statement.kind)
        if statement.backfill:
            changes = {"backfill_parallelism": statement.parallelism}
        else:
            changes = {"parallelism": statement.parallelism or DEFAULT}
        command = await rescaling.alter(self.world, entry.job, changes, asked_by=self.asked_by)
        tag = f"ALTER_{statement.kind.upper().replace(' ', '_')}"
        if statement.deferred:
            return Outcome(tag)
        if await rescaling.recovering(self.world):
            return Outcome(tag, notices=("the cluster is under recovery: the change is deferred until it is over",))
        await mutations.applied(self.world, command)
        return Outcome(tag)

    async def _wait(self, kind: RelationKind | None, name: str | None) -> None:
        only = None if kind is None or name is None else (await self._existing(name, kind)).job
        await lifecycle.over(self.world, only, limit=WAIT_LIMIT, gone=self.gone)

    def _leaves(self, statement: s.CreateTable | s.CreateTableFrom | s.CreateMaterializedView) -> Gone | None:
        """Return what ends the wait of a CREATE. One with a key waits on, because a repetition gets its answer; unless
        the repetition finds the relation and waits for it again.
        """
        return self.gone if self.claim is None or statement.if_not_exists else None

    async def _show(self, statement: Listing | s.Describe | s.ShowCreate) -> Outcome:
        match statement:
            case s.ShowJobs():
                return await self._show_jobs()
            case s.ShowRelations(kind=kind):
                return _listed(await relation_names(self.world, kind))
            case s.ShowInternalTables():
                async with self.world.stores.begin() as tx:
                    return _listed(await internal_tables(tx))
            case s.ShowSecrets():
                return _listed(await secrets.names(self.world))
            case s.Describe(name=name):
                view = await self._view(name)
                return _described(await self._existing(name, None)) if view is None else _described_view(view)
            case s.ShowCreate(kind=kind, name=name):
                definition = await self._definition(name, kind)
                columns = (("Name", "text"), ("Create Sql", "text"))
                return Outcome("SHOW", columns, ((f"public.{name}", definition),))

    async def _explain(self, statement: s.Explain | s.ExplainBackfill) -> Outcome:
        match statement:
            case s.Explain(view=view):
                lines = await ddl.explain_view(self.world, view, self.session)
            case s.ExplainBackfill(view=view):
                lines = dot(await ddl.order_of(self.world, view))
        return Outcome("EXPLAIN", (("QUERY PLAN", "text"),), tuple((line,) for line in lines))

    async def _show_jobs(self) -> Outcome:
        async with self.world.stores.begin() as tx:
            creating = await listed(tx)
            progress = await progress_of(tx, creating)
        rows = tuple(
            (job.id, job.statement, "BACKGROUND" if job.background else "FOREGROUND", progress[job.id].text)
            for job in creating
        )
        columns = (("Id", "bigint"), ("Statement", "text"), ("Create Type", "text"), ("Progress", "text"))
        return Outcome("SHOW", columns, rows)

    async def _definition(self, name: str, kind: RelationKind) -> str:
        async with self.world.stores.begin() as tx:
            found = await named(tx, name)
        if found is None:
            raise NotFound(f'{kind} "{name}" does not exist', kind="relation")
        if found.kind is not kind:
            raise wrong_kind(name, is_a=found.kind, asked=kind)
        return found.definition

    async def _named(self, name: str) -> CatalogEntry | None:
        async with self.world.stores.begin() as tx:
            return await tx.catalog.named(name)

    async def _free(self, name: str) -> bool:
        async with self.world.stores.begin() as tx:
            return await named(tx, name) is None

    async def _view(self, name: str) -> LogicalView | None:
        async with self.world.stores.begin() as tx:
            return await tx.views.named(name)

    async def _existing(self, name: str, kind: RelationKind | None) -> CatalogEntry:
        entry = await self._named(name)
        if entry is None:
            async with self.world.stores.begin() as tx:
                other = await named(tx, name)
            if other is not None and kind is not None and other.kind is not kind:
                raise wrong_kind(name, is_a=other.kind, asked=kind)
            raise NotFound(f'{kind or "relation"} "{name}" does not exist', kind="relation")
        if kind is not None and entry.relation.kind is not kind:
            raise wrong_kind(name, is_a=entry.relation.kind, asked=kind)
        return entry

    def _variable(self, name: str) -> str:
        return self.session.get(name, SESSION_DEFAULTS[name])


def _listed(names: Iterable[str]) -> Outcome:
    return Outcome("SHOW", (("Name", "text"),), tuple((name,) for name in names))


def _described_view(view: LogicalView) -> Outcome:
    rows = tuple((name, kind, "false", None) for name, kind in view.columns)
    return Outcome("DESCRIBE", _DESCRIBED, rows)


def _described(entry: CatalogEntry) -> Outcome:
    rows = tuple((c.name, str(c.type), str(c.hidden).lower(), None) for c in entry.relation.columns)
    key = ", ".join(f"{part.name}{' DESC' if part.descending else ''}" for part in entry.relation.key)
    return Outcome("DESCRIBE", _DESCRIBED, (*rows, ("primary key", key, None, None)))
