"""Chores of the leader that no epoch waits for: vacuum old versions, drop staging tables that are done with."""

from service.domain.job import IN_GRAPH
from service.operations.world import World
from service.protocol.ids import DATABASE_GRAPH, Epoch, Term


async def vacuum(world: World, *, term: Term) -> int:
    """Delete row versions that no reader can need any more; return how many."""
    async with world.stores.begin(term) as tx:
        jobs = await tx.jobs.where(IN_GRAPH)
        published = Epoch(int((await tx.graphs.state(DATABASE_GRAPH))["published"]))
    return await world.tables.vacuum([job.relation for job in jobs], DATABASE_GRAPH, published, term=term)


async def unstage(world: World, *, term: Term) -> int:
    """Drop the staging tables of answered statements; return how many."""
    async with world.stores.begin(term) as tx:
        done = await tx.statements.staged()
    for statement in done:
        await world.staging.drop(statement)
        async with world.stores.begin(term) as tx:
            await tx.statements.unstaged(statement)
    return len(done)
