"""Build the indexes of stored relations that users named or that stages need, and drop the others (I9).

A job with stages starts after its indexes exist. The index of a large table takes minutes, so each build runs in a task
of its own and delays no loop (I13). The stored plans and names determine the needed indexes, so a new leader continues.
A build waits for the transactions that began before it, whoever holds them open: the jobs name them meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from service.domain.backoff import SetAside
from service.domain.barrier import Chore
from service.domain.errors import Deposed, Exhausted, InUse, MetaError, NotFound, Refused
from service.domain.indexes import begun, needed
from service.domain.job import IllegalTransition, JobState
from service.operations.jobs.failing import refuse
from service.operations.jobs.snapshots import INDEX_TRIES
from service.operations.jobs.stages import lookups_of, named
from service.operations.retrying import retried
from service.operations.world import Context, World
from service.ports.indexes import IndexState, NamedIndex, StoredIndex
from service.ports.meta_store import Transaction
from service.ports.state_store import IndexSize
from service.protocol.ids import JobId, RelationId, Term
from service.protocol.plan import JobPlan
from service.protocol.stage import LookupIndex
from service.telemetry.log import logger

log = logger("lookups")

DROPS_AT_ONCE: Final = 10
"""How many indexes are dropped before the next builds begin. A drop waits for 0.2 s where an index is in use."""


@dataclass
class Builds:
    """The builds that run in this process, and those that failed. `over` is called when one ends.

    `needed` are the indexes that have to exist, with the jobs whose stages need them. `held` are the builds that wait
    for the transaction of somebody else, each with that transaction. `kept` are the names of indexes that are in use.
    """

    over: Callable[[], None]
    tasks: dict[LookupIndex, asyncio.Task[None]] = field(default_factory=dict[LookupIndex, asyncio.Task[None]])
    aside: SetAside[LookupIndex] = field(default_factory=SetAside[LookupIndex])
    exhausted: Counter[LookupIndex] = field(default_factory=Counter[LookupIndex])
    needed: Mapping[LookupIndex, Sequence[JobPlan]] = field(default_factory=dict[LookupIndex, Sequence[JobPlan]])
    held: Mapping[LookupIndex, str] = field(default_factory=dict[LookupIndex, str])
    kept: SetAside[str] = field(default_factory=SetAside[str])

    def wait(self, *, now: datetime, longest: timedelta) -> timedelta:
        """Return the time until the next build or drop is due."""
        return self.kept.wait(now=now, longest=self.aside.wait(now=now, longest=longest))

    async def stop(self) -> None:
        """Cancel the builds. An interrupted one leaves an invalid index, which the next build replaces."""
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _Decided:
    """The needed indexes, each with the jobs whose stages need it, those to be dropped, and those newly built."""

    needed: Mapping[LookupIndex, Sequence[JobPlan]]
    dropping: Collection[LookupIndex]
    built: Sequence[NamedIndex]
    """Those that users are not shown yet."""


async def reconcile(world: World, builds: Builds, *, term: Term) -> None:
    """Begin to build the missing indexes, and drop some of those that nobody needs. Raises Deposed, Unavailable.

    An index is stored in the meta store before it is built, and looked for in the state store before the meta store is
    read. So one that is built meanwhile is not dropped.
    """
    there = await world.state_store.lookups.stored()
    decided = await _decide(world, there, term=term)
    if decided.built:
        await _show(world, decided.built, term=term)
    builds.needed = decided.needed
    for index in builds.tasks.keys() - decided.needed.keys():
        builds.tasks[index].cancel()
    missing = await world.state_store.lookups.missing(decided.needed)
    builds.aside.keep(missing)
    due = builds.aside.due(sorted(missing - builds.tasks.keys(), key=str), now=world.clock.now())
    callers = {index: jobs[0].caller for index, jobs in decided.needed.items() if jobs}
    for index in begun(due, builds.tasks, builds.held, callers):
        builds.tasks[index] = asyncio.create_task(_build(world, builds, index, term=term))
    doomed = there.keys() - {world.state_store.lookups.name(one) for one in decided.needed}
    left = there.keys() - await _drop(world, builds, doomed, term=term)
    gone = [one for one in decided.dropping if world.state_store.lookups.name(one) not in left]
    if gone:
        await _forget(world, gone, term=term)


async def _drop(world: World, builds: Builds, doomed: Collection[str], *, term: Term) -> Collection[str]:
    """Drop some indexes, and return those that are gone. One that is in use is set aside, and delays no other (I13)."""
    builds.kept.keep(doomed)
    every = builds.kept.due(sorted(doomed), now=world.clock.now())
    due = every[:DROPS_AT_ONCE]
    if len(every) > len(due):
        # The builds that became due meanwhile begin before the next ones.
        world.signals.notify(Chore.INDEX)
    gone = await world.state_store.lookups.drop(due, term=term) if due else frozenset[str]()
    for name in set(due) - gone:
        builds.kept.failed(name, now=world.clock.now())
    return gone


async def watch(world: World, builds: Builds, *, term: Term) -> None:
    """Let other builds pass those that wait for somebody else's transaction, and name it to the jobs of their tables.

    Raises Deposed, Unavailable.
    """
    if not builds.tasks:
        return
    before, found = builds.held, await world.state_store.lookups.held()
    builds.held = {index: whose for index, whose in found.items() if index in builds.tasks}
    if builds.held.keys() - before.keys():
        world.signals.notify(Chore.INDEX)
    changed = {one for one in before.keys() | builds.held.keys() if before.get(one) != builds.held.get(one)}
    for index in changed & builds.tasks.keys():
        whose = builds.held.get(index)
        standing = "is being built" if whose is None else f"waits for {whose}"
        await _say_of_table(world, builds, index, f"{_what(builds, index)} {standing}", term=term)


@retried
async def _forget(world: Context, gone: Collection[LookupIndex], *, term: Term) -> None:
    async with world.stores.begin(term) as tx:
        for one in sorted(gone, key=str):
            await tx.stored_indexes.forget(one)


@retried
async def _decide(world: World, there: Mapping[str, IndexSize], *, term: Term) -> _Decided:
    """Store the needed indexes and those to be dropped. All indexes are locked before the need for them is read."""
    async with world.stores.begin(term) as tx:
        stored = {one.index: one for one in await tx.stored_indexes.lock()}
        plans = {plan.relation.id: plan for plan in await tx.plans.outlines(await tx.plans.staged())}
        asked: dict[LookupIndex, list[NamedIndex]] = {}
        for one in await tx.indexes.all():
            asked.setdefault(one.stored_as, []).append(one)
        lookups = {view: lookups_of(plan) for view, plan in plans.items()}
        known = [*asked, *stored, *(one for wanted in lookups.values() for one in wanted)]
        sizes = {one: size for one in known if (size := there.get(world.state_store.lookups.name(one))) is not None}
        created = {one for one, size in sizes.items() if size.complete}
        found = needed(asked, lookups, created)
        dropping = sorted(stored.keys() - found.keys(), key=str)
        # In one order, because the job queue inserts rows too.
        for index in sorted([*found, *dropping], key=str):
            if (views := found.get(index)) is None:
                new = StoredIndex(index, IndexState.DROPPING, stored[index].bytes)
            else:
                new = _stored(stored.get(index), index, sizes.get(index), asked.get(index, ()), views)
            await _put(world, tx, stored.get(index), new)
    built = [one for index in found if index in created for one in asked.get(index, ()) if not one.shown]
    needs = {index: [plans[view] for view in sorted(views)] for index, views in found.items()}
    return _Decided(needs, dropping, built)


def _stored(
    before: StoredIndex | None,
    index: LookupIndex,
    size: IndexSize | None,
    asked: Sequence[NamedIndex],
    views: Collection[RelationId],
) -> StoredIndex:
    complete = size is not None and size.complete
    return StoredIndex(
        index=index,
        state=IndexState.CREATED if complete else IndexState.CREATING,
        bytes=None if size is None else size.bytes,
        error=None if complete or before is None else before.error,
        named=tuple(one.relation.id for one in asked),
        views=tuple(sorted(views)),
    )


async def _put(world: Context, tx: Transaction, before: StoredIndex | None, new: StoredIndex) -> None:
    if new != before:
        await tx.stored_indexes.put(new, now=world.clock.now())


@retried
async def _show(world: Context, built: Sequence[NamedIndex], *, term: Term) -> None:
    """A transaction of its own, because a DROP locks the relation of an index before its stored index."""
    async with world.stores.begin(term) as tx:
        for index in sorted(built, key=lambda one: one.relation.id):
            if await tx.indexes.named(index.relation.name) == index:
                await tx.indexes.show(index.relation.id)
                await tx.events.append("index.created", {"name": index.relation.name}, now=world.clock.now())


async def _build(world: World, builds: Builds, index: LookupIndex, *, term: Term) -> None:
    what = _what(builds, index)
    try:
        await world.state_store.lookups.build(index, term=term)
        await _ended(world, index, None, term=term)
    except Deposed:
        log.info("index.abandoned", index=what)
    except InUse as error:
        builds.aside.failed(index, now=world.clock.now())
        await _say(world, builds.needed.get(index, ()), f"{what} waits for {error}", term=term)
    except Exception as error:  # noqa: BLE001 - any error concerns those that need this index alone
        log.warning("index.not_built", index=what, error=str(error))
        builds.aside.failed(index, now=world.clock.now())
        builds.exhausted[index] += isinstance(error, Exhausted)
        over = isinstance(error, Refused) or builds.exhausted[index] >= INDEX_TRIES
        await _told(world, builds, index, f"{what} could not be built: {error}", over=over, term=term)
    else:
        log.info("index.built", index=what)
        del builds.exhausted[index]
        # A job that lacks another index says so when it is tried again.
        await _say_of_table(world, builds, index, None, term=term)
    finally:
        del builds.tasks[index]
        builds.held = {other: whose for other, whose in builds.held.items() if other != index}
        builds.over()


def _what(builds: Builds, index: LookupIndex) -> str:
    return f"an index of {named(index, builds.needed.get(index, ()))}"


async def _told(world: Context, builds: Builds, index: LookupIndex, text: str, *, over: bool, term: Term) -> None:
    """Record why an index is missing and why the jobs wait, or fail these. A job that already runs goes on, slowly."""
    try:
        await _ended(world, index, text, term=term)
    except MetaError as error:
        log.warning("index.not_told", index=str(index), error=str(error))
    await _say(world, builds.needed.get(index, ()), text, over=over, term=term)


async def _say_of_table(world: Context, builds: Builds, index: LookupIndex, text: str | None, *, term: Term) -> None:
    """Record why the jobs wait that need an index of this table: its indexes are built one after the other."""
    plans = {plan.id: plan for one, its in builds.needed.items() if one.relation == index.relation for plan in its}
    await _say(world, list(plans.values()), text, term=term)


async def _say(world: Context, plans: Sequence[JobPlan], text: str | None, *, over: bool = False, term: Term) -> None:
    """Record why jobs wait, or fail them. One that has started, or has ended, is left alone."""
    for plan in plans:
        try:
            await _told_job(world, plan.id, text, over=over, term=term)
        except (MetaError, IllegalTransition, NotFound) as error:
            log.warning("index.not_told", job=plan.id, error=str(error))


@retried
async def _ended(world: Context, index: LookupIndex, error: str | None, *, term: Term) -> None:
    async with world.stores.begin(term) as tx:
        await tx.stored_indexes.ended(index, error=error, now=world.clock.now())


@retried
async def _told_job(world: Context, job: JobId, text: str | None, *, over: bool, term: Term) -> None:
    async with world.stores.begin(term) as tx:
        found = await tx.jobs.get(job)
        if found is None or found.state not in {JobState.INITIAL, JobState.QUEUED}:
            return
        if over and text is not None:
            await refuse(tx, found, text, now=world.clock.now())
        else:
            await tx.queue.prepare(job, text)
