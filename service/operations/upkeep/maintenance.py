"""Run the leader's chores that no epoch waits for.

They vacuum old row versions, drop unused staging tables, and delete requests of dead services and old workers.
"""

from collections.abc import Sequence

from service.domain.errors import Deposed
from service.domain.job import IN_GRAPH, JobState
from service.operations.auditing import KEPT
from service.operations.read_logins import end_logins
from service.operations.retrying import retried
from service.operations.upkeep.growth import limit_growth
from service.operations.verify.worker_rpc import VERIFY_WAIT
from service.operations.world import Context, World
from service.protocol.ids import DATABASE_GRAPH, StatementId, Term
from service.telemetry.log import logger

log = logger("maintenance")


async def tidy(world: World, *, term: Term) -> None:
    """Run every chore, even if another one fails (I13). Raises Deposed at once and the first other error at the end."""
    failed: list[Exception] = []
    for chore in (limit_growth, vacuum, unstage, forget_past, end_logins):
        try:
            await chore(world, term=term)
        except Deposed:
            raise
        except Exception as error:  # noqa: BLE001 - raised once all were done
            log.warning("chore.failed", chore=chore.__name__, error=str(error))
            failed.append(error)
    if failed:
        raise failed[0]


@retried
async def vacuum(world: World, *, term: Term) -> int:
    """Delete row versions that no reader can see any more, and return their number."""
    async with world.stores.begin(term) as tx:
        running = await tx.jobs.where(IN_GRAPH)
        # Nothing of a snapshot job is vacuumed before it is created.
        jobs = [job for job in running if not job.in_partial_graph or job.state is JobState.CREATED]
        outputs = await tx.plans.outputs([job.id for job in jobs])
        states = await tx.graphs.states({DATABASE_GRAPH, *(job.graph for job in jobs)})
        # Read after the published epochs, because a job that starts in between pins a later epoch.
        pinned = await tx.snapshots.pinned()
    deleted = 0
    for graph, state in states.items():
        epoch = state.published if pinned is None else min(state.published, pinned)
        written = [output for job in jobs if job.graph == graph for output in outputs.get(job.id, ())]
        deleted += await world.state_store.tables.vacuum(written, graph, epoch, term=term)
    return deleted


@retried
async def unstage(world: World, *, term: Term) -> int:
    """Drop unused staging tables and return their number.

    They belong to answered statements, or to statements that were never accepted because their service died.
    """
    async with world.stores.begin(term) as tx:
        done = await tx.staging_tables.unused()
    dropped = await _drop_staged(world, done)
    async with world.stores.begin(term) as tx:
        for statement in dropped:
            await tx.staging_tables.dropped(statement)
    # Read before the statements. The table of a statement that is accepted later is still locked here, and not listed.
    unheld = await world.state_store.staging.unheld()
    async with world.stores.begin(term) as tx:
        known = await tx.statements.outcomes(unheld)
    return len(dropped) + len(await _drop_staged(world, [one for one in unheld if one not in known]))


async def _drop_staged(world: World, statements: Sequence[StatementId]) -> Sequence[StatementId]:
    """Drop staging tables one by one. A table that a reader such as a dump uses is retried later (I13)."""
    dropped: list[StatementId] = []
    for statement in statements:
        try:
            await world.state_store.staging.drop(statement)
        except Exception as error:  # noqa: BLE001 - any error concerns this table alone
            log.warning("statement.not_unstaged", statement=statement, error=str(error))
        else:
            dropped.append(statement)
    return dropped


@retried
async def forget_past(world: Context, *, term: Term) -> None:
    """Delete the requests to workers that no caller can wait for any more, and the workers that ended long ago. Entries
    of the audit trail, and tokens that ended, are kept for `KEPT`.
    """
    now = world.clock.now()
    async with world.stores.begin(term) as tx:
        await tx.requests.forget_older(now - VERIFY_WAIT)
    # A worker's answer to a request locks the worker first.
    async with world.stores.begin(term) as tx:
        await tx.workers.forget(now=now)
        await tx.tokens.forget_older(now - KEPT)
        await tx.audit.forget_older(now - KEPT)
