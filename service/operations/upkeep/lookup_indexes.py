"""Build the lookup indexes of users' relations that stages need, and drop those that no job needs any more (I9).

A job with stages starts after its indexes exist. The index of a large table takes minutes, so each build runs in a task
of its own and delays no loop (I13). The stored plans determine the needed indexes, so a new leader continues.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service.domain.errors import Deposed, Exhausted, MetaError, NotFound, Refused
from service.domain.job import IllegalTransition, JobState
from service.domain.set_aside import SetAside
from service.operations.jobs.failing import refuse
from service.operations.jobs.snapshots import INDEX_TRIES
from service.operations.jobs.stages import lookups_of, named
from service.operations.world import World
from service.protocol.ids import Term
from service.protocol.plan import JobPlan
from service.protocol.stage import LookupIndex
from service.telemetry.log import logger

log = logger("lookups")


@dataclass
class Builds:
    """The builds that run in this process, and those that failed. `over` is called when one ends."""

    over: Callable[[], None]
    tasks: dict[LookupIndex, asyncio.Task[None]] = field(default_factory=dict[LookupIndex, asyncio.Task[None]])
    aside: SetAside[LookupIndex] = field(default_factory=SetAside[LookupIndex])
    exhausted: Counter[LookupIndex] = field(default_factory=Counter[LookupIndex])

    async def stop(self) -> None:
        """Cancel the builds. An interrupted one leaves an invalid index, which the next build replaces."""
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def reconcile(world: World, builds: Builds, *, term: Term) -> None:
    """Drop the indexes that no job needs, and begin to build the missing ones. Raises Deposed, Unavailable."""
    async with world.stores.begin(term) as tx:
        plans = await tx.plans.of(await tx.plans.staged())
    needed: dict[LookupIndex, list[JobPlan]] = defaultdict(list)
    for plan in plans:
        for index in lookups_of(plan):
            needed[index].append(plan)
    # A job that was added in between may need a dropped index. The next call builds it again.
    await world.lookups.drop_others(needed, term=term)
    missing = await world.lookups.missing(needed)
    builds.aside.keep(missing)
    due = builds.aside.due(sorted(missing - builds.tasks.keys(), key=str), now=world.clock.now())
    for index in due:
        task = asyncio.create_task(_build(world, builds, index, needed[index], term=term))
        builds.tasks[index] = task


async def _build(world: World, builds: Builds, index: LookupIndex, plans: Sequence[JobPlan], *, term: Term) -> None:
    what = f"an index of {named(index, plans[0])}"
    try:
        await world.lookups.build(index, term=term)
    except Deposed:
        log.info("index.abandoned", index=what)
    except Exception as error:  # noqa: BLE001 - any error concerns the jobs that need this index alone
        log.warning("index.not_built", index=what, error=str(error))
        builds.aside.failed(index, now=world.clock.now())
        builds.exhausted[index] += isinstance(error, Exhausted)
        over = isinstance(error, Refused) or builds.exhausted[index] >= INDEX_TRIES
        await _told(world, plans, f"{what} could not be built: {error}", over=over, term=term)
    else:
        log.info("index.built", index=what)
        del builds.exhausted[index]
    finally:
        del builds.tasks[index]
        builds.over()


async def _told(world: World, plans: Sequence[JobPlan], text: str, *, over: bool, term: Term) -> None:
    """Record why the jobs wait, or fail them if `over`. A job that already runs goes on, only more slowly."""
    for plan in plans:
        try:
            async with world.stores.begin(term) as tx:
                found = await tx.jobs.get(plan.id)
                if found is None or found.state not in {JobState.INITIAL, JobState.QUEUED}:
                    continue
                if over:
                    await refuse(tx, found, text, now=world.clock.now())
                else:
                    await tx.queue.prepare(plan.id, text)
        except (MetaError, IllegalTransition, NotFound) as error:
            log.warning("index.not_told", job=plan.id, error=str(error))
