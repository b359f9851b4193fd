"""Start and stop the workers of a cluster. The leader alone does, and what it knows is in the meta store.

A tick lists the pods, decides (`service.domain.launching`), records in one transaction that asserts the term, and only
then creates and deletes pods. A tick that was cut short is repeated by the next one, of this leader or another. Next:
`service.launchers.kubernetes.cluster`.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from service.domain.launching import Facts, HeldUp, Launch, OwnJob, Steps, decide
from service.operations.retrying import retried
from service.operations.upkeep.launching import record
from service.operations.world import World
from service.ports.launcher import Cluster, Ended
from service.ports.meta_store import Transaction
from service.protocol.ids import DATABASE_GRAPH, Term
from service.telemetry.log import logger

log = logger("cluster")

CHANGING, STEADY = timedelta(seconds=1), timedelta(seconds=5)
"""The wait between two ticks, while a worker starts or ends and while none does."""
_SILENCE: Final = timedelta(minutes=10)
"""How long a worker goes on without any service. Later it has ended by itself."""


@dataclass
class Supervision:
    """The workers of a cluster, as one service supervises them while it leads."""

    world: World
    cluster: Cluster
    start_within: timedelta
    """How long a worker may take to start, the wait for a new node included."""
    began: float = field(init=False)

    def __post_init__(self) -> None:
        """Remember since when this service hears workers."""
        self.began = self.world.clock.monotonic()

    @retried
    async def look(self, *, term: Term) -> timedelta:
        """Run one tick and return the wait until the next one.

        Raises Deposed, and Unavailable if the meta store is. Then no worker is started or ended.
        """
        await self._check(term)
        seen = await self.cluster.look()
        asked, now = self.world.clock.monotonic(), self.world.clock.now()
        async with self.world.stores.begin(term) as tx:
            self.world.workers.attention.missed(asked, self.world.clock.monotonic())
            known = await tx.workers.all(now=now, lease=self._patience())
            own = await tx.workers.wanted()
            wanted = [DATABASE_GRAPH, *own]
            facts = Facts(
                now=now,
                launches=await tx.launches.all(),
                seen=seen,
                wanted=wanted,
                registered={one.worker: one.registered_at for one in known},
                alive={one.worker: one.graph for one in known if one.alive},
                leaving={one.worker for one in known if one.leaving},
                start_within=self.start_within,
            )
            steps = decide(facts)
            await self._record(tx, steps, facts)
            launches = await tx.launches.all()
        if steps.ended or steps.held:
            self.world.signals.notify()
        if not isinstance(seen, HeldUp):
            for launch in launches:
                if launch.posted_at is None and launch.end is None and launch.graph in wanted:
                    await self._start(launch, own.get(launch.graph), term)
            await self._delete(steps)
        return CHANGING if steps.changing else STEADY

    def _patience(self) -> timedelta:
        """Return how long a worker may be silent. After a time without services, workers first have to be heard."""
        patience = self.world.patience()
        heard_for = timedelta(seconds=self.world.clock.monotonic() - self.began)
        return patience + _SILENCE if heard_for < patience else patience

    async def _check(self, term: Term) -> None:
        """Record which templates the cluster refuses, before a job needs them."""
        refused = {profile: found for profile, found in (await self.cluster.check()).items() if found is not None}
        for profile, found in refused.items():
            log.warning("worker.template_refused", profile=profile, cause=found.cause, text=found.text)
            async with self.world.stores.begin(term) as tx:
                facts = {"profile": profile, "cause": found.cause, "text": found.text}
                await tx.events.append("worker.template_refused", facts, now=self.world.clock.now())

    async def _record(self, tx: Transaction, steps: Steps, facts: Facts) -> None:
        now = facts.now
        for launch in steps.ended:
            end = launch.end
            assert end is not None
            asked, wait = launch.graph not in facts.wanted or launch.worker in facts.leaving, end.due - end.at
            ended = Ended(launch.worker, launch.graph, end.reason, asked=asked, failures=end.failures, wait=wait)
            await record(tx, ended, now=now)
            await tx.launches.put(launch)
        for before, launch in steps.held:
            await self._hold(tx, before, launch, now)
        for graph, attempt in steps.begun:
            await tx.launches.put(Launch(self.cluster.name(graph, attempt), graph, attempt, now))
        if steps.forgotten:
            await tx.launches.forget(steps.forgotten)

    async def _hold(self, tx: Transaction, before: Launch, launch: Launch, now: datetime) -> None:
        """Store what holds a launch up. Only another cause is an event, because texts have numbers that change."""
        await tx.launches.put(launch)
        held = launch.held
        if held is not None and (before.held is None or before.held.cause != held.cause):
            log.warning("worker.held_up", worker=launch.worker, graph=launch.graph, cause=held.cause, text=held.text)
            facts = {"worker": launch.worker, "graph": launch.graph, "cause": held.cause, "text": held.text}
            await tx.events.append("worker.held_up", facts, now=now)

    async def _start(self, launch: Launch, own: OwnJob | None, term: Term) -> None:
        found, now = await self.cluster.start(launch, own), self.world.clock.now()
        changed = launch.holding(found, now=now)
        if found is None:
            changed = replace(changed, posted_at=now)
            log.info("worker.started", worker=launch.worker, graph=launch.graph)
        if changed != launch:
            async with self.world.stores.begin(term) as tx:
                await self._hold(tx, launch, changed, now)
            self.world.signals.notify()

    async def _delete(self, steps: Steps) -> None:
        for worker, kill in steps.deleted.items():
            if (found := await self.cluster.end(worker, kill=kill)) is not None:
                log.warning("worker.not_ended", worker=worker, cause=found.cause, text=found.text)
