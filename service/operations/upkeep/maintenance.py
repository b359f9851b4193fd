"""Chores of the leader that no epoch waits for: vacuum old versions, drop staging tables that are done with, forget
questions whose service was killed, and workers that ended long ago.
"""

from collections.abc import Sequence

from service.domain.errors import Deposed
from service.domain.job import IN_GRAPH
from service.operations.verify.worker_rpc import VERIFY_WAIT
from service.operations.world import World
from service.protocol.ids import DATABASE_GRAPH, StatementId, Term
from service.telemetry.log import logger

log = logger("maintenance")


async def tidy(world: World, *, term: Term) -> None:
    """Do every chore, whatever becomes of the others (I13). Raises the first failure at the end; Deposed at once."""
    failed: list[Exception] = []
    for chore in (vacuum, unstage, forget_past):
        try:
            await chore(world, term=term)
        except Deposed:
            raise
        except Exception as error:  # noqa: BLE001 - raised once all were done
            log.warning("chore.failed", chore=chore.__name__, error=str(error))
            failed.append(error)
    if failed:
        raise failed[0]


async def vacuum(world: World, *, term: Term) -> int:
    """Delete row versions that no reader can need any more; return how many."""
    async with world.stores.begin(term) as tx:
        jobs = await tx.jobs.where(IN_GRAPH, graph=DATABASE_GRAPH)
        outputs = await tx.jobs.outputs([job.id for job in jobs])
        published = (await tx.graphs.state(DATABASE_GRAPH)).published
        # Read after what is published: a job that starts in between pins a later epoch.
        pinned = await tx.snapshots.pinned()
    epoch = published if pinned is None else min(published, pinned)
    written = [output for of_job in outputs.values() for output in of_job]
    return await world.tables.vacuum(written, DATABASE_GRAPH, epoch, term=term)


async def unstage(world: World, *, term: Term) -> int:
    """Drop the staging tables of answered statements, and those that were filled and never accepted because their
    service died in between; return how many.
    """
    async with world.stores.begin(term) as tx:
        done = await tx.statements.staged()
    dropped = await _drop_staged(world, done)
    async with world.stores.begin(term) as tx:
        for statement in dropped:
            await tx.statements.unstaged(statement)
    # Looked at before the statements are: what is accepted later is held until then.
    unheld = await world.staging.unheld()
    orphans: list[StatementId] = []
    async with world.stores.begin(term) as tx:
        orphans.extend([one for one in unheld if await tx.statements.get(one) is None])
    return len(dropped) + len(await _drop_staged(world, orphans))


async def _drop_staged(world: World, statements: Sequence[StatementId]) -> Sequence[StatementId]:
    """Drop staging tables, each by itself: one that is read, by a dump for instance, stays for another try (I13)."""
    dropped: list[StatementId] = []
    for statement in statements:
        try:
            await world.staging.drop(statement)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is of this item alone
            log.warning("statement.not_unstaged", statement=statement, error=str(error))
        else:
            dropped.append(statement)
    return dropped


async def forget_past(world: World, *, term: Term) -> None:
    """Forget the questions that nobody can wait for any more, and the workers that ended long ago."""
    async with world.stores.begin(term) as tx:
        await tx.requests.forget_older(world.clock.now() - VERIFY_WAIT)
        await tx.workers.forget(now=world.clock.now())
