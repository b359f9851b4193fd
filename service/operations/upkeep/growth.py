"""End views that fill the state store without end, as a join of everything with everything does (I13)."""

from service.domain.job import JobState
from service.domain.parameters import SystemParameters
from service.operations.commands.fan_out import ask
from service.operations.jobs import failing, lifecycle
from service.operations.retrying import retried
from service.operations.world import Context
from service.ports.audit import itself
from service.protocol.ids import JobId, Term
from service.protocol.mutation import Stop


@retried
async def limit_growth(world: Context, *, term: Term) -> None:
    """End each view that has stored too many rows. Raises Deposed, Unavailable.

    One in creation is cancelled (`creating_rows_max`). A created one fails (`view_rows_max`): it can be read as it is.
    """
    async with world.stores.begin(term) as tx:
        limits = SystemParameters.of(await tx.parameters.all())
        creating = await tx.jobs.grown(limits.creating_rows_max, JobState.CREATING) if limits.creating_rows_max else {}
        created = await tx.jobs.grown(limits.view_rows_max, JobState.CREATED) if limits.view_rows_max else {}
    for job, rows in creating.items():
        said = f"it has stored {rows} rows, and creating_rows_max is {limits.creating_rows_max}"
        await lifecycle.give_up(world, job, said)
    for job, rows in created.items():
        said = f"it has stored {rows} rows, and view_rows_max is {limits.view_rows_max}: drop it, or create it again"
        await _fail(world, job, said, term=term)


@retried
async def _fail(world: Context, job: JobId, reason: str, *, term: Term) -> None:
    """Fail a created view. A barrier stops its actors, and no recovery delays the others."""
    async with world.stores.begin(term) as tx:
        await tx.jobs.hold_all([job])
        await failing.fail(tx, job, reason, now=world.clock.now())
        await ask(tx, Stop(jobs=(job,)), asked_by=itself("the service"), now=world.clock.now())
    world.signals.notify()
