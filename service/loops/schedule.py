"""Run the loops of a service process: the lease, the barriers of each graph, and the chores.

Every service runs all loops, but only the leader has work in most of them. Next: `service.operations.barriers.advance`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from service.domain.backoff import SetAside
from service.domain.barrier import Chore
from service.domain.errors import Deposed, NotFound
from service.domain.graph import Effect, Inject, Publish, Retire, Wait
from service.domain.leadership import Leadership, attempt_every
from service.loops.periodic import Pauses, run_periodically
from service.operations import idempotency
from service.operations.barriers import advance, leadership, recovery
from service.operations.jobs import queue
from service.operations.read_logins import end_overdue
from service.operations.sources import growing, upkeep
from service.operations.upkeep import adaptive, launching, lookup_indexes, maintenance
from service.operations.upkeep.cluster import CHANGING, STEADY, Supervision
from service.operations.world import World
from service.ports.launcher import Launcher
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId, RelationId, Term

_IDLE_SECONDS = 1.0
"""The longest wait between two ticks of a graph with nothing due. A signal ends it."""
_CHORE_AT_LEAST = timedelta(seconds=5)
"""The longest wait between two runs of a chore. A tick of the database graph wakes a chore that is due."""
ATTEND_EVERY = timedelta(seconds=5)
"""How often new partial graphs are searched for, in addition to the moments at which this process begins some."""
_TIDY_AT_MOST, _TIDY_AT_LEAST = timedelta(seconds=5), timedelta(seconds=20)
"""The shortest and the longest wait between two clean-ups. A publication wakes them."""
_INDEX_AT_MOST = timedelta(milliseconds=100)
"""The shortest wait between two checks of lookup indexes, so that builds that end together are handled together."""
_WATCH_EVERY = timedelta(milliseconds=500)
"""How often running builds of indexes are looked at."""
_WATCH_SESSIONS_EVERY = timedelta(seconds=1)
"""How often the sessions of users' own tools are looked at. For so long one of them can make others wait."""
_SUPERVISE_AT_MOST, _SUPERVISE_AT_LEAST = timedelta(milliseconds=200), timedelta(seconds=2)
"""The shortest and the longest wait between two checks of the workers. A worker process that ends wakes its launcher.
"""
_GROW_EVERY = timedelta(seconds=5)
"""How often new columns of external tables are looked for."""
_NO_SOURCES_AT_LEAST = timedelta(seconds=10)
"""The longest wait between two checks of external databases if there are none."""
_ADAPT_EVERY = timedelta(milliseconds=100)
"""The shortest wait between two adaptations of limits. A publication wakes them, so a change can ride on the next
barrier. Health probes are not called more often than this.
"""


@dataclass
class Schedule:
    """The loops of one service process. `run` returns after `stop` is set, and resigns the lease before it does."""

    world: World
    holder: str
    launcher: Launcher | None
    """Starts the workers of this service, if it starts some."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    cluster: Supervision | None = None
    """Starts the workers of all services, if a cluster runs them."""
    leading: Leadership | None = None
    attended: dict[GraphId, asyncio.Event] = field(default_factory=dict[GraphId, asyncio.Event])
    """The partial graphs that have a loop in this process, each with the event that ends the loop."""
    attending: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    jobs_aside: SetAside[JobId] = field(default_factory=SetAside[JobId])
    relations_aside: SetAside[RelationId] = field(default_factory=SetAside[RelationId])
    builds: lookup_indexes.Builds = field(init=False)

    def __post_init__(self) -> None:
        """Wake the job queue whenever the build of an index ends."""
        self.builds = lookup_indexes.Builds(self._built)

    async def run(self) -> None:
        """Run every loop until `stop` is set."""
        loops = [
            run_periodically(self.stand, Pauses(timedelta(0)), self.stop, name="elector"),
            run_periodically(self.pulse, Pauses(timedelta(0)), self.stop, name="barriers"),
            run_periodically(self.start_jobs, Pauses(timedelta(0)), self.stop, name="queue"),
            run_periodically(self.clean_up, Pauses(timedelta(0)), self.stop, name="cleanup"),
            run_periodically(self.attend, Pauses(ATTEND_EVERY), self.stop, name="graphs"),
            run_periodically(self.adapt, Pauses(_ADAPT_EVERY), self.stop, name="adaptive"),
            run_periodically(self.renew, Pauses(idempotency.RENEW_EVERY), self.stop, name="claims"),
            run_periodically(self.index, Pauses(_INDEX_AT_MOST), self.stop, name="lookups"),
            run_periodically(self.watch_builds, Pauses(_WATCH_EVERY), self.stop, name="builds"),
            run_periodically(self.watch_sessions, Pauses(_WATCH_SESSIONS_EVERY), self.stop, name="sessions"),
            run_periodically(self.tidy, Pauses(_TIDY_AT_MOST), self.stop, name="maintenance"),
            run_periodically(self.mind_sources, Pauses(timedelta(seconds=1)), self.stop, name="sources"),
            run_periodically(self.grow_tables, Pauses(_GROW_EVERY), self.stop, name="columns"),
        ]
        if self.launcher is not None:
            loops.append(run_periodically(self.supervise, Pauses(_SUPERVISE_AT_MOST), self.stop, name="launcher"))
        if self.cluster is not None:
            loops.append(run_periodically(self.supervise_cluster, Pauses(CHANGING), self.stop, name="cluster"))
        try:
            await asyncio.gather(*loops)
        finally:
            for over in self.attended.values():
                over.set()
            await asyncio.gather(*self.attending)
            await self.builds.stop()
            if self.leading is not None:
                await leadership.resign(self.world, self.holder)

    async def stand(self) -> None:
        """Try to win or renew the lease, then wait for the next attempt or for a leader that releases its lease."""
        heard = self.world.signals.heard(Chore.ELECT)
        await self.elect()
        await self.world.signals.wait(attempt_every(self.holder), topic=Chore.ELECT, since=heard)

    async def elect(self) -> None:
        """Try once to win or renew the lease."""
        before = self.leading
        self.leading = await leadership.lead(self.world, self.holder, leading=before)
        self.world.metrics.leader.set(self.leading is not None)
        # A follower that told others would wake the next follower, which would wake it again.
        if before is None and self.leading is not None:
            self.world.signals.notify()
            await self.attend()

    async def pulse(self, graph: GraphId = DATABASE_GRAPH) -> Effect | None:
        """Run all ticks of a graph that are due, then wait for the next one or a signal. A follower only waits."""
        term = self._term()
        if term is None:
            await self.world.signals.wait(_IDLE_SECONDS, topic=graph)
            return None
        return await self.look(graph, term=term)

    async def start_jobs(self) -> None:
        """Start the jobs that may start, then wait until others may."""
        await self._chore(Chore.START_JOBS, self.jobs_aside, self._start_jobs)

    async def _start_jobs(self, term: Term) -> None:
        if await queue.start_jobs(self.world, term=term, aside=self.jobs_aside):
            self.world.signals.notify()
            await self.attend()

    async def clean_up(self) -> None:
        """Remove the remains of dropped relations, then wait for the next drop."""
        await self._chore(Chore.CLEAN_UP, self.relations_aside, self._clean_up)

    async def _clean_up(self, term: Term) -> None:
        await recovery.clean_up(self.world, term=term, aside=self.relations_aside)

    async def _chore(self, chore: Chore, aside: SetAside[Any], work: Callable[[Term], Awaitable[None]]) -> None:
        """Run a chore, then wait until it is due again.

        A tick of the database graph, or an item that was set aside, makes it due.
        """
        heard = self.world.signals.heard(chore)
        if (term := self._term()) is not None:
            await work(term)
        wait = aside.wait(now=self.world.clock.now(), longest=_CHORE_AT_LEAST)
        await self.world.signals.wait(wait.total_seconds(), topic=chore, since=heard)

    async def attend(self) -> None:
        """Start a loop for every partial graph that has none in this process, so that no graph waits for another (I10).

        It is called where a partial graph begins, and periodically for graphs that another leader began.
        """
        if self._term() is None:
            return
        async with self.world.stores.begin() as tx:
            graphs = await tx.partial_graphs.all()
        for graph in set(graphs) - self.attended.keys():
            over = self.attended[graph] = asyncio.Event()
            loop = run_periodically(
                partial(self.pulse_decoupled, graph), Pauses(timedelta(0)), over, name=f"graph {graph}"
            )
            task = asyncio.create_task(loop)
            self.attending.add(task)
            task.add_done_callback(self.attending.discard)

    async def pulse_decoupled(self, graph: GraphId) -> None:
        """Run `pulse` in a partial graph, and end its loop when the graph is retired."""
        try:
            effect = await self.pulse(graph)
        except NotFound:
            effect = Retire()  # another leader has retired it
        if isinstance(effect, Retire):
            self.attended.pop(graph).set()

    async def look(self, graph: GraphId, *, term: Term) -> Effect:
        """Tick a graph until it has to wait or is retired, then wait. Return the last effect."""
        while True:
            heard = self.world.signals.heard(graph)
            try:
                effects = await advance.proceed(self.world, graph, term=term)
            except Deposed:
                self.leading = None
                raise
            match effect := effects[-1]:
                case Publish():
                    self.world.signals.notify(Chore.ADAPT, Chore.TIDY)
                case Wait() | Inject():
                    await self._wait(graph, effect, since=heard)
                    break
                case Retire():
                    break
                case _:
                    pass
        return effect

    async def _wait(self, graph: GraphId, effect: Wait | Inject, *, since: int) -> None:
        seconds = _IDLE_SECONDS
        if isinstance(effect, Wait) and effect.until is not None:
            seconds = min(seconds, (effect.until - self.world.clock.now()).total_seconds())
        if seconds > 0:
            await self.world.signals.wait(seconds, topic=graph, since=since)

    async def adapt(self) -> None:
        """Adapt limits to the newest barrier. It has a loop of its own, because a health probe may be slow."""
        heard = self.world.signals.heard(Chore.ADAPT)
        if (term := self._term()) is not None:
            for graph in await adaptive.graphs(self.world):
                await adaptive.adapt(self.world, graph, term=term)
        await self.world.signals.wait(_CHORE_AT_LEAST.total_seconds(), topic=Chore.ADAPT, since=heard)

    async def renew(self) -> None:
        """Renew the claims on idempotency keys of the calls that this process runs."""
        await idempotency.renew(self.world)

    async def tidy(self) -> None:
        """Run the clean-ups of `maintenance` once, then wait for a publication that may leave something to clean up."""
        heard = self.world.signals.heard(Chore.TIDY)
        if (term := self._term()) is not None:
            await maintenance.tidy(self.world, term=term)
        await self.world.signals.wait(_TIDY_AT_LEAST.total_seconds(), topic=Chore.TIDY, since=heard)

    async def index(self) -> None:
        """Begin to build missing lookup indexes and drop unneeded ones. Then wait until a job needs one or a build
        ends.
        """
        heard = self.world.signals.heard(Chore.INDEX)
        if (term := self._term()) is not None:
            await lookup_indexes.reconcile(self.world, self.builds, term=term)
        wait = self.builds.wait(now=self.world.clock.now(), longest=_TIDY_AT_LEAST)
        await self.world.signals.wait(wait.total_seconds(), topic=Chore.INDEX, since=heard)

    async def watch_builds(self) -> None:
        """Look for builds of indexes that wait for somebody else's transaction."""
        if (term := self._term()) is not None:
            await lookup_indexes.watch(self.world, self.builds, term=term)

    def _built(self) -> None:
        """Start the jobs that wait for an index whose build has ended."""
        self.jobs_aside.keep(())
        self.world.signals.notify(Chore.INDEX, Chore.START_JOBS)

    async def watch_sessions(self) -> None:
        """End sessions of users' own tools that exceed their limits."""
        if (term := self._term()) is not None:
            await end_overdue(self.world, term=term)

    async def mind_sources(self) -> None:
        """Clean up and measure external databases. It has a loop of its own, because an unreachable server answers
        late.
        """
        heard = self.world.signals.heard(Chore.MIND_SOURCES)
        term = self._term()
        if term is not None and await upkeep.there_are_some(self.world):
            await upkeep.clean_up(self.world, term=term)
            await upkeep.watch(self.world, term=term)
            return
        wait = _NO_SOURCES_AT_LEAST.total_seconds()
        await self.world.signals.wait(wait, topic=Chore.MIND_SOURCES, since=heard)

    async def grow_tables(self) -> None:
        """Take up new columns of external tables."""
        if (term := self._term()) is not None:
            await growing.grow(self.world, term=term)

    async def supervise(self) -> None:
        """Start and stop worker processes, then wait until one ends or others may be wanted."""
        assert self.launcher is not None
        heard = self.world.signals.heard(Chore.SUPERVISE)
        await launching.supervise(self.world, self.launcher, leading=self._term() is not None)
        await self.world.signals.wait(_SUPERVISE_AT_LEAST.total_seconds(), topic=Chore.SUPERVISE, since=heard)

    async def supervise_cluster(self) -> None:
        """Start and stop workers of the cluster, then wait until others may be wanted or some may have changed."""
        assert self.cluster is not None
        heard, wait = self.world.signals.heard(Chore.SUPERVISE), STEADY
        if (term := self._term()) is not None:
            wait = await self.cluster.look(term=term)
        await self.world.signals.wait((wait - CHANGING).total_seconds(), topic=Chore.SUPERVISE, since=heard)

    def worker_ended(self) -> None:
        """Wake `supervise`, because a worker process of the launcher has ended."""
        self.world.signals.notify(Chore.SUPERVISE)

    def _term(self) -> Term | None:
        """Return the term, or None if this process does not lead or its lease may have expired."""
        if self.leading is None or not self.leading.trusted(self.world.clock.monotonic()):
            return None
        return self.leading.term
