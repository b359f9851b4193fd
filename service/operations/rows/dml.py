"""Accept DML durably. The worker runs it inside an epoch, and the caller is answered after that epoch is published."""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final

from service.domain.errors import Invalid, Unavailable
from service.domain.roles import Role
from service.domain.unstoppable import LONGEST
from service.domain.uploading import Kept
from service.operations.leaving import Gone, unless
from service.operations.polling import until
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.records import Claim
from service.ports.state_store import StagedRows
from service.protocol.columns import Column
from service.protocol.dml import InsertStaged, Statement, StatementResult
from service.protocol.ids import DATABASE_GRAPH, StatementId
from service.protocol.relation import Relation

STAGING_TIMEOUT_MS = 600_000
ANSWER_WAIT: timedelta = timedelta(minutes=30)
"""The longest wait for a statement. After it the client gets an error. The statement stays queued, even in recovery."""

GONE: Final = "the statement is no longer known"
NO_DML: Final = "its table format takes no rows from users"


async def readable(world: World, names: Collection[str], target: str, *, position: int) -> dict[str, Relation]:
    """Return the readable relations among `names` for a statement that changes `target`, one of `names`.

    Raises Invalid if `target` is a followed table or lies in a lake, or if the table format has no DML.
    """
    if not world.state_store.table_format.dml:
        raise Invalid(f'cannot change table "{target}": {NO_DML}', position=position)
    async with world.stores.begin() as tx:
        entries = await tx.catalog.called(names)
    if any(entry.relation.lake is not None and entry.relation.name == target for entry in entries):
        message = f'cannot change table "{target}": its rows lie in a lake, and are read in place'
        raise Invalid(message, position=position)
    if any(entry.follows and entry.relation.name == target for entry in entries):
        message = f'cannot change table "{target}": it follows a table of a source, and that alone'
        raise Invalid(message, position=position)
    return {entry.relation.name: entry.relation for entry in entries if entry.shown}


async def reserve(world: Context) -> StatementId:
    """Reserve the id of a new statement."""
    async with world.stores.begin() as tx:
        return await tx.statements.reserve()


async def run(world: World, statement: Statement, *, asked_by: Asker, claim: Claim | None = None) -> int:
    """Accept a statement, wait until its epoch is published, and return the number of changed rows.

    If an earlier call with the same idempotency key was accepted, wait for its statement instead. Raises Invalid with
    the state store's message if the statement failed; it then has no effect. Raises Unavailable if it was not accepted,
    or not run in time.
    """
    if claim is not None and claim.statement is not None:
        return await _outcome(world, claim.statement)
    await _accept(world, statement, asked_by=asked_by, claim=claim)
    return await _outcome(world, statement.id)


@retried
async def _accept(
    world: World, statement: Statement, *, asked_by: Asker, claim: Claim | None, staged_rows: int | None = None
) -> None:
    async with _recorded(world, statement, asked_by) as tx:
        now = world.clock.monotonic()
        if world.calls.backlog.is_old(now):
            unstoppable = await tx.statements.unstoppable(since=world.clock.now() - LONGEST)
            world.calls.backlog.counted(await tx.statements.backlog(), unstoppable, now=now)
        # Staged rows compute nothing, and admins can restart Postgres.
        if staged_rows is None and asked_by.role is not Role.ADMIN:
            world.calls.backlog.check_stoppable(asked_by.actor, now=world.clock.now())
        world.calls.backlog.admit(asked_by.actor)
        size = await tx.statements.add(statement, now=world.clock.now(), staged_rows=staged_rows, caller=asked_by.actor)
        if claim is not None:
            await tx.keys.accepted(claim, statement.id)
    world.calls.backlog.accepted(asked_by.actor, size)
    world.signals.notify(DATABASE_GRAPH)


@asynccontextmanager
async def _recorded(world: World, statement: Statement, asked_by: Asker) -> AsyncGenerator[Transaction]:
    """Open a transaction that records the first statement of a kind that an actor sends for a table in a minute.

    With an entry for each, the trail would grow as fast as the tables that it is about.
    """
    key = (asked_by.actor, statement.type, statement.relation.id)
    due = world.calls.recorded.due(key, now=world.clock.monotonic())
    try:
        async with world.stores.begin(by=asked_by if due else None) as tx:
            yield tx
    except BaseException:
        if due:
            world.calls.recorded.forget(key)
        raise


async def _outcome(world: World, statement: StatementId) -> int:
    result = await _answered(world, statement)
    if result.error == GONE:
        raise Unavailable(f"statement {statement} is no longer known")
    if result.error is not None:
        raise Invalid(result.error)
    return result.affected


async def insert_query(
    world: World,
    relation: Relation,
    columns: Sequence[Column],
    query: str,
    *,
    asked_by: Asker,
    claim: Claim | None = None,
    gone: Gone | None = None,
) -> int:
    """Run INSERT .. SELECT: stage the query's result at the published epoch, then apply it in slices.

    If the caller is `gone` before the result is staged, nothing is inserted. Raises what `Spool.check` raises.
    """
    if claim is not None and claim.statement is not None:
        return await _outcome(world, claim.statement)
    statement = await reserve(world)
    with Kept(world.loading.spool, asked_by.actor) as kept:
        staging = world.state_store.staging.from_query(
            statement, columns, query, timeout_ms=STAGING_TIMEOUT_MS, take=kept.take, key=_key(relation)
        )
        return await _insert_staged(
            world, statement, relation, columns, staging, asked_by=asked_by, claim=claim, gone=gone
        )


async def bulk_load(
    world: World,
    relation: Relation,
    columns: Sequence[Column],
    chunks: AsyncIterator[bytes],
    *,
    asked_by: Asker,
    claim: Claim | None = None,
) -> int:
    """Load Postgres CSV text. All rows are validated before the first one is applied."""
    if claim is not None and claim.statement is not None:
        return await _outcome(world, claim.statement)
    statement = await reserve(world)
    staging = world.state_store.staging.from_csv(statement, columns, chunks, key=_key(relation))
    return await _insert_staged(world, statement, relation, columns, staging, asked_by=asked_by, claim=claim)


def _key(relation: Relation) -> tuple[str, ...]:
    return tuple(part.name for part in relation.key)


async def _insert_staged(
    world: World,
    statement: StatementId,
    relation: Relation,
    columns: Sequence[Column],
    staging: AbstractAsyncContextManager[StagedRows],
    *,
    asked_by: Asker,
    claim: Claim | None,
    gone: Gone | None = None,
) -> int:
    async def stage() -> int:
        async with world.loading.turns.turn(asked_by.actor), staging as staged:
            if staged.rows > 0:
                names = tuple(column.name for column in columns)
                insert = InsertStaged(
                    id=statement,
                    relation=relation,
                    columns=names,
                    first=0,
                    last=staged.rows,
                    row_bytes=staged.row_bytes,
                )
                await _accept(world, insert, asked_by=asked_by, claim=claim, staged_rows=staged.rows)
            return staged.rows

    if await unless(gone, stage()) == 0:
        await world.state_store.staging.drop(statement)
        return 0
    return await _outcome(world, statement)


async def _answered(world: World, statement: StatementId) -> StatementResult:
    async def look() -> StatementResult | None:
        return await world.calls.answers.get(statement, partial(_answers, world))

    result = await until(world, look, limit=ANSWER_WAIT)
    if result is None:
        raise Unavailable("no epoch has run the statement yet; it stays queued")
    return result


async def _answers(world: Context, wanted: Collection[StatementId]) -> Mapping[StatementId, StatementResult]:
    """Return the results of the statements whose epochs are published, and an error for unknown statements."""
    async with world.stores.begin() as tx:
        outcomes = await tx.statements.outcomes(wanted)
        published = (await tx.graphs.state(DATABASE_GRAPH)).published
    gone = {one: StatementResult(id=one, affected=0, error=GONE) for one in wanted if one not in outcomes}
    answered = {one: found[1] for one, found in outcomes.items() if found is not None and published >= found[0]}
    return gone | answered
