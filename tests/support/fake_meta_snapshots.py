"""Graphs of snapshot jobs and limits of the meta store in memory; part of `fake_meta_store`. Nothing is adapted."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from service.domain.graph import FailedIndex
from service.domain.job import JobState
from service.ports.limits import Held
from service.ports.records import Command
from service.ports.snapshots import Snapshot
from service.protocol.ids import DATABASE_GRAPH, Epoch, FragmentId, GraphId, JobId
from service.protocol.mutation import Pause, Resume, Stop
from service.protocol.plan import ScanType
from tests.support.fake_meta_tables import GraphRow, Tables, printable

_UNFINISHED = {JobState.CREATING, JobState.CANCELLING}


@dataclass(frozen=True, slots=True)
class FakeSnapshots:
    tables: Tables

    async def of_graph(self, graph: GraphId) -> Snapshot | None:
        return self.tables.snapshots.get(graph)

    async def of_jobs(self, jobs: Collection[JobId]) -> Mapping[JobId, Snapshot]:
        return {one.job: one for one in self.tables.snapshots.values() if one.job in jobs}

    async def index_built(self, graph: GraphId) -> None:
        if row := self.tables.snapshots.get(graph):
            self.tables.snapshots.put(graph, replace(row, indexed=True))

    async def index_failed(self, graph: GraphId, failed: FailedIndex) -> None:
        if graph in self.tables.snapshots:
            self.tables.failed_indexes.put(graph, replace(failed, error=printable(failed.error)))

    async def replayed(self, graph: GraphId, consumed: Epoch) -> None:
        if row := self.tables.snapshots.get(graph):
            self.tables.snapshots.put(graph, replace(row, consumed=consumed))

    async def readable(self, job: JobId) -> Epoch:
        return _readable(self.tables, job)

    async def pinned(self) -> Epoch | None:
        read = [one.epoch if one.consumed is None else one.consumed for one in self._creating()]
        return min(read, default=None)

    async def settled(self) -> Mapping[JobId, Epoch]:
        return {one.job: self.tables.graphs[one.graph].committed for one in self._creating() if one.merged}

    def _creating(self) -> list[Snapshot]:
        rows = self.tables.snapshots.values()
        jobs = {one.job: self.tables.jobs[one.job].job for one in rows}
        return [
            one
            for one in rows
            if jobs[one.job].state in _UNFINISHED or (one.stays and jobs[one.job].state is JobState.CREATED)
        ]


@dataclass(frozen=True, slots=True)
class FakePartialGraphs:
    tables: Tables

    async def pin_totals(self, job: JobId) -> None:
        tables = self.tables
        for fragment in tables.of_job(job):
            upstream = None if fragment.upstream is None else tables.relations[fragment.upstream]
            if fragment.scan_type is ScanType.SNAPSHOT_BACKFILL and upstream is not None and upstream.owner is None:
                tables.scans.put(fragment.id, replace(tables.scans[fragment.id], total=upstream.key_count))

    async def begin(self, job: JobId, *, indexed: bool) -> Snapshot:
        tables, database = self.tables, self.tables.graphs[DATABASE_GRAPH]
        graph = GraphId(DATABASE_GRAPH + next(tables.ids))
        asked = [
            isinstance(one.mutation, Pause)
            for _, one in sorted(tables.commands.items())
            if one.graph == DATABASE_GRAPH and isinstance(one.mutation, Pause | Resume)
        ]
        paused = asked[-1] if asked else database.paused
        tables.graphs.put(
            graph, GraphRow(graph, paused=paused, paused_since=database.paused_since, paused_by=database.paused_by)
        )
        row = tables.jobs[job]
        readable = _readable(tables, job)
        tables.jobs.put(job, replace(row, job=replace(row.job, graph=graph), snapshot_epoch=readable))
        begun = Snapshot(job, graph, readable, indexed=indexed, stays=row.job.own_graph is not None)
        tables.snapshots.put(graph, begun)
        return begun

    async def all(self) -> Sequence[GraphId]:
        return sorted(one for one in self.tables.graphs if one != DATABASE_GRAPH)

    async def unmerged(self) -> Sequence[GraphId]:
        return sorted(one.graph for one in self.tables.snapshots.values() if not one.merged)

    async def of_jobs(self, jobs: Collection[JobId]) -> Mapping[JobId, GraphId]:
        return {one: self.tables.jobs[one].job.graph for one in sorted(set(jobs)) if one in self.tables.jobs}

    async def merge(self, graph: GraphId) -> None:
        self.tables.snapshots.put(graph, replace(self.tables.snapshots[graph], merged=True))
        self._leave(graph)
        self._hand_over(graph)
        for command in self._waiting(graph):
            self.tables.commands.put(command.id, replace(command, graph=DATABASE_GRAPH))

    async def leave(self) -> None:
        tables, database = self.tables, self.tables.graphs[DATABASE_GRAPH]
        for one, row in sorted(tables.jobs.items()):
            its = row.job
            if its.graph != DATABASE_GRAPH or its.state is not JobState.CREATED or its.own_graph is None:
                continue
            graph, at = GraphId(DATABASE_GRAPH + next(tables.ids)), database.committed
            new = GraphRow(graph, committed=at, published=database.published, newest=database.newest)
            paused = {"paused": database.paused, "paused_since": database.paused_since, "paused_by": database.paused_by}
            tables.graphs.put(graph, replace(new, **paused))
            tables.snapshots.put(graph, Snapshot(one, graph, at, consumed=at, indexed=True, stays=True))
            tables.jobs.put(one, replace(row, job=replace(its, graph=graph), snapshot_epoch=at))

    async def retire(self, graph: GraphId) -> None:
        tables = self.tables
        if graph not in tables.graphs:
            return
        self._hand_over(graph)
        last = tables.graphs[DATABASE_GRAPH].committed
        parts = {part for of in tables.parts.values() for part in of}
        for command in self._waiting(graph):
            refused = command.id not in parts and command.mutation is not None
            error = "the job is no longer being created" if refused and not isinstance(command.mutation, Stop) else None
            tables.commands.take(command.id)
            over = replace(command, graph=DATABASE_GRAPH, done=True, epoch=last, error=error)
            tables.finished_commands.put(command.id, over)
        for one, command in list(tables.finished_commands.items()):
            if command.graph == graph:
                tables.finished_commands.put(one, replace(command, graph=DATABASE_GRAPH))
        self._leave(graph)
        for table in (tables.barriers, tables.history):
            for key in [key for key in table if key[0] == graph]:
                table.take(key)
        tables.snapshots.take(graph)
        tables.own_workers.take(graph)
        tables.failed_indexes.take(graph)
        tables.graphs.take(graph)

    def _waiting(self, graph: GraphId) -> list[Command]:
        return [one for one in self.tables.commands.values() if one.graph == graph]

    def _leave(self, graph: GraphId) -> None:
        for job, row in list(self.tables.jobs.items()):
            if row.job.graph == graph:
                self.tables.jobs.put(job, replace(row, job=replace(row.job, graph=DATABASE_GRAPH)))

    def _hand_over(self, graph: GraphId) -> None:
        database = self.tables.graphs[DATABASE_GRAPH]
        newest = max(database.newest, self.tables.graphs[graph].newest)
        self.tables.graphs.put(DATABASE_GRAPH, replace(database, newest=newest))


def _readable(tables: Tables, job: JobId) -> Epoch:
    """Return the last epoch that is committed in all graphs of what the job reads."""
    writers = {tables.relations[one].job for row in tables.of_job(job) for one in row.reads} - {job}
    graphs = {DATABASE_GRAPH, *(tables.jobs[one].job.graph for one in writers)}
    return min(tables.graphs[one].committed for one in graphs)


@dataclass(frozen=True, slots=True)
class FakeLimits:
    tables: Tables

    async def put(
        self,
        limits: Mapping[FragmentId, int | None],
        *,
        auto: Collection[FragmentId],
        epoch: Epoch,
        by: str | None = None,
    ) -> None:
        assert not auto, "nothing is adapted in memory"
        for one, limit in limits.items():
            if row := self.tables.fragments.get(one):
                self.tables.fragments.put(one, replace(row, rate_limit=limit, limit_epoch=epoch, limit_by=by))

    async def hold(self, fragments: Collection[FragmentId]) -> Mapping[FragmentId, Held]:
        rows = [self.tables.fragments[one] for one in sorted(set(fragments)) if one in self.tables.fragments]
        return {
            row.id: Held(row.rate_limit, auto=False, present=None, paused=row.paused, resumes_at=row.resumes_at)
            for row in rows
        }

    async def pause(self, limits: Mapping[FragmentId, int | None]) -> None:
        for one, limit in limits.items():
            row = self.tables.fragments[one]
            self.tables.fragments.put(one, replace(row, paused=True, resumes_at=limit))

    async def unpause(self, fragments: Collection[FragmentId]) -> None:
        for one in fragments:
            if row := self.tables.fragments.get(one):
                self.tables.fragments.put(one, replace(row, paused=False, resumes_at=None))
