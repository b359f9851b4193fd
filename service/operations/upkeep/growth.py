"""Cancel the creation of views that fill the state store without end, as a join of everything with everything does."""

from service.domain.parameters import SystemParameters
from service.operations.jobs import lifecycle
from service.operations.retrying import retried
from service.operations.world import World
from service.protocol.ids import Term


@retried
async def limit_growth(world: World, *, term: Term) -> None:
    """Cancel each job in creation that has stored more than `creating_rows_max` rows. Raises Deposed, Unavailable."""
    async with world.stores.begin(term) as tx:
        limit = SystemParameters.of(await tx.parameters.all()).creating_rows_max
        grown = await tx.jobs.grown(limit) if limit else {}
    for job, rows in grown.items():
        await lifecycle.give_up(world, job, f"it has stored {rows} rows, and creating_rows_max is {limit}")
