"""The catalog, jobs, fragments and actors of the meta store in memory; part of `fake_meta_store`."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from service.domain.cutting import cut
from service.domain.errors import Conflict, NotFound
from service.domain.fair_queue import Queued, Share
from service.domain.graph import Line
from service.domain.job import CREATING, HOLDS_PERMIT, TERMINAL, Job, JobEvent, JobState, after
from service.domain.order import OrderedScan, awaited, dependents
from service.domain.parallelism import Parallelism
from service.domain.progress import ScanProgress, advanced
from service.domain.slow_views import SlowView
from service.ports.records import (
    THE_RELATION,
    CatalogEntry,
    CatalogOutline,
    Cleanup,
    Json,
    NewDml,
    NewFragment,
    NewJob,
    NewOperator,
    NewSourceScan,
    NewSplitScan,
    NewTableScan,
    Receded,
    hidden_id,
)
from service.protocol.epoch import instant_of
from service.protocol.ids import ActorId, Epoch, FragmentId, GraphId, JobId, RelationId
from service.protocol.plan import (
    SCANS,
    ActorPlan,
    DmlPlan,
    FragmentKind,
    FragmentPlan,
    JobPlan,
    OperatorPlan,
    ScanType,
    SnapshotPlan,
    SplitScanPlan,
    TableScanPlan,
)
from service.protocol.relation import Relation, RelationKind
from service.protocol.report import ActorReport, Collected
from service.protocol.stage import Stage
from service.protocol.vnodes import Runs, vnodes_of
from tests.support.fake_meta_indexes import FakeNamedIndexes, check_free
from tests.support.fake_meta_tables import (
    UNREADABLE,
    ActorRow,
    FragmentRow,
    JobRow,
    RelationRow,
    ScanRow,
    Tables,
    printable,
)

_ENDS = TERMINAL | {JobState.CREATED, JobState.FAILED}


@dataclass(frozen=True, slots=True)
class FakeCatalog:
    tables: Tables

    async def named(self, name: str) -> CatalogEntry | None:
        return next((entry for entry in await self.all() if entry.relation.name == name), None)

    async def get(self, relation: RelationId) -> CatalogEntry | None:
        return next((entry for entry in await self.all() if entry.relation.id == relation), None)

    async def all(self) -> Sequence[CatalogEntry]:
        return [self._entry(row) for row in self.tables.taken() if row.owner is None]

    async def outlines(self) -> Sequence[CatalogOutline]:
        return [
            CatalogOutline(
                id=one.relation.id,
                name=one.relation.name,
                kind=one.relation.kind,
                job=one.job,
                state=one.state,
                upstreams=one.upstreams,
                shown=one.shown,
                location=None if one.relation.lake is None else one.relation.lake.options.get("location"),
            )
            for one in await self.all()
        ]

    async def called(self, names: Collection[str]) -> Sequence[CatalogEntry]:
        return [entry for entry in await self.all() if entry.relation.name in names]

    async def dependents(self, relation: RelationId) -> Sequence[CatalogEntry]:
        readers = {row.job for row in self.tables.fragments.values() if relation in row.reads}
        return [self._entry(row) for row in self.tables.taken() if row.owner is None and row.job in readers]

    async def hold(self, wanted: Collection[RelationId]) -> None:
        """Transactions in memory come one after the other."""

    async def add_column(self, relation: Relation, statement: str | None) -> None:
        row = self.tables.relations[relation.id]
        added = "" if statement is None else f";\n{statement}"
        wider = replace(row, relation=relation, definition=f"{row.definition}{added}")
        self.tables.relations.put(relation.id, wider)

    async def remove(self, relation: RelationId) -> None:
        row = self.tables.relations.get(relation)
        if row is None or row.dropped:
            return
        for one in (row, *self.tables.hidden(relation)):
            self.tables.relations.put(one.relation.id, replace(one, dropped=True))
            self.tables.cleanups.put(one.relation.id, Cleanup(one.relation.id, one.relation.name))
        for index, named in list(self.tables.named_indexes.items()):
            if named.on == relation:
                await FakeNamedIndexes(self.tables).remove(index)
        for fragment in self.tables.of_job(row.job):
            self.tables.fragments.take(fragment.id)
            self.tables.positions.take(fragment.id)
            self.tables.scans.take(fragment.id)
            for actor in self.tables.of_fragment(fragment.id):
                self.tables.actors.take(actor.id)

    def _entry(self, row: RelationRow) -> CatalogEntry:
        read = {one for fragment in self.tables.of_job(row.job) for one in fragment.reads}
        read = {one for one in read if self.tables.relations[one].owner is None}
        return CatalogEntry(
            relation=row.relation,
            definition=row.definition,
            job=row.job,
            state=self.tables.jobs[row.job].job.state,
            key_count=row.key_count,
            upstreams=tuple(sorted(read)),
            shown=row.shown,
        )


@dataclass(frozen=True, slots=True)
class FakeCleanups:
    tables: Tables

    async def all(self) -> Sequence[Cleanup]:
        return [cleanup for _, cleanup in sorted(self.tables.cleanups.items(), reverse=True)]

    async def done(self, relation: RelationId) -> None:
        self.tables.cleanups.take(relation)
        if row := self.tables.relations.get(relation):
            self.tables.relations.put(relation, replace(row, definition=cut(row.definition)))
            if found := self.tables.jobs.get(row.job):
                kept = replace(found.job, statement=cut(found.job.statement))
                self.tables.jobs.put(row.job, replace(found, job=kept))

    async def hold(self, relation: RelationId, reason: str) -> None:
        if one := self.tables.cleanups.get(relation):
            self.tables.cleanups.put(relation, replace(one, held=reason))


@dataclass(frozen=True, slots=True)
class FakeVisibility:
    tables: Tables

    async def publish(
        self,
        graph: GraphId,
        epoch: Epoch,
        *,
        now: datetime,
        created: bool = True,
        held_back: Collection[RelationId] = (),
    ) -> None:
        row = self.tables.graphs[graph]
        if row.published < epoch:
            self.tables.graphs.put(graph, replace(row, published=epoch))
        for key, one in list(self.tables.history.items()):
            if key[0] == graph and key[1] <= epoch and one.state == "COMMITTED" and one.published_at is None:
                self.tables.history.put(key, replace(one, published_at=now))
        for relation, found in list(self.tables.relations.items()):
            job = self.tables.jobs[found.job]
            if (
                created
                and relation not in held_back
                and relation == job.job.relation
                and not (found.shown or found.dropped)
                and job.job.graph == graph
                and job.job.state is JobState.CREATED
            ):
                self.tables.relations.put(relation, replace(found, shown=True))
                self.tables.jobs.put(found.job, replace(job, job=replace(job.job, published=True, held_back=None)))

    async def unshown(self, graph: GraphId | None = None) -> Sequence[Relation]:
        unshown = [row for row in self.tables.taken() if row.owner is None and not row.shown]
        jobs = {row.relation.id: self.tables.jobs[row.job].job for row in unshown}
        return [
            row.relation
            for row in unshown
            if (job := jobs[row.relation.id]).state is JobState.CREATED and graph in {None, job.graph}
        ]

    async def hold_back(self, relation: RelationId, reason: str) -> None:
        row = self.tables.relations.get(relation)
        if row is not None and not (row.shown or row.dropped):
            stored = self.tables.jobs[row.job]
            self.tables.jobs.put(row.job, replace(stored, job=replace(stored.job, held_back=reason)))


@dataclass(frozen=True, slots=True)
class FakeJobs:
    tables: Tables

    async def add(self, new: NewJob, *, now: datetime, by: str = "") -> Job:
        tables = self.tables
        assert not new.views, "no source and no logical view is made in memory"
        for upstream in sorted(new.upstreams):
            read = tables.relations[upstream]
            state = tables.jobs[read.job].job.state
            if state in UNREADABLE:
                raise Conflict(f'{read.relation.kind} "{read.relation.name}" cannot be read: it is {state}')
        check_free(tables, new.relation.name)
        hidden = [RelationId(next(tables.ids)) for _ in new.hidden]
        relation = RelationId(next(tables.ids))
        number = JobId(relation)
        for place, (one, form) in enumerate(zip(hidden, new.hidden, strict=True), 1):
            name, kind = f"__{new.relation.name}_{place}", RelationKind.INTERNAL
            made = form.model_copy(update={"id": one, "name": name, "kind": kind})
            tables.relations.put(one, RelationRow(made, new.statement, number, owner=relation))
        stored = new.relation.model_copy(update={"id": relation})
        tables.relations.put(relation, RelationRow(stored, new.statement, number))
        job = Job(
            id=number,
            relation=relation,
            name=new.relation.name,
            kind=new.relation.kind,
            statement=new.statement,
            state=JobState.INITIAL,
            background=new.background,
            initialized_at=now,
            state_since=now,
            parallelism=new.parallelism,
            backfill_parallelism=new.backfill_parallelism,
            serverless=new.serverless,
            resource_group=new.resource_group,
            published=False,
            created_by=printable(by),
            own_graph=new.own_graph,
        )
        ids = {THE_RELATION: relation} | {hidden_id(place): one for place, one in enumerate(hidden)}
        order = tuple((ids.get(before, before), ids.get(after, after)) for before, after in new.order)
        row = JobRow(job, order, new.parallelism is not None, traceparent=new.traceparent, plan_bytes=new.plan_bytes)
        tables.jobs.put(number, row)
        late = dependents(new.order)
        for one in new.fragments:
            self._add_fragment(number, one, late, ids)
        return job

    async def get(self, job: JobId) -> Job | None:
        row = self.tables.jobs.get(job)
        return None if row is None else row.job

    async def hold(self, job: JobId) -> Job | None:
        row = self.tables.jobs.get(job)
        return None if row is None else row.job

    async def hold_all(self, jobs: Collection[JobId]) -> None:
        """Transactions in memory come one after the other."""

    async def where(
        self,
        states: Collection[JobState] | None = None,
        *,
        graph: GraphId | None = None,
        ids: Collection[JobId] | None = None,
        kept: bool = False,
    ) -> Sequence[Job]:
        return [
            row.job
            for number, row in sorted(self.tables.jobs.items())
            if (states is None or row.job.state in states)
            and (graph is None or row.job.graph == graph)
            and (ids is None or number in ids)
            and not (kept and self.tables.relations[row.job.relation].dropped)
        ]

    async def take_traced(self) -> Sequence[tuple[Job, str]]:
        found: list[tuple[Job, str]] = []
        for number, row in sorted(self.tables.jobs.items()):
            if row.traceparent is not None and row.job.finished_at is not None:
                found.append((row.job, row.traceparent))
                self.tables.jobs.put(number, replace(row, traceparent=None))
        return found

    async def backfilling(self) -> Sequence[Job]:
        return ()

    async def grown(self, rows: int, state: JobState) -> Mapping[JobId, int]:
        stored = Counter[JobId]()
        for row in self.tables.relations.values():
            job = self.tables.jobs[row.job].job
            if job.state is state and job.kind is RelationKind.MATERIALIZED_VIEW:
                stored[row.job] += row.key_count
        return {job: count for job, count in stored.items() if count > rows}

    async def stay(self, job: JobId, reason: str) -> None:
        row = self.tables.jobs[job]
        self.tables.jobs.put(job, replace(row, job=replace(row.job, own_graph=printable(reason))))

    async def move(self, job: JobId, event: JobEvent, *, now: datetime, error: str | None = None) -> Job:
        row = self.tables.jobs.get(job)
        if row is None:
            raise NotFound(f"job {job} not found", kind="job")
        before = row.job
        state = after(before.state, event)
        moved = replace(
            before,
            state=state,
            state_since=now,
            started_at=now if event is JobEvent.STARTED else before.started_at,
            preparing=None if event is JobEvent.STARTED else before.preparing,
            finished_at=now if state in _ENDS and before.finished_at is None else before.finished_at,
            error=before.error if error is None else printable(error),
        )
        due = row.rescale_due or (event is JobEvent.FINISHED and before.backfill_parallelism is not None)
        self.tables.jobs.put(job, replace(row, job=moved, rescale_due=due))
        return moved

    def _add_fragment(
        self, job: JobId, new: NewFragment, late: Collection[RelationId], ids: Mapping[RelationId, RelationId]
    ) -> None:
        one = FragmentId(next(self.tables.ids))
        self.tables.fragments.put(one, _row_of(one, job, new, late, ids))
        for runs in new.actors:
            actor = ActorId(next(self.tables.ids))
            self.tables.actors.put(actor, ActorRow(actor, one, runs))
        if isinstance(new, NewTableScan):
            self.tables.scans.put(one, ScanRow())


@dataclass(frozen=True, slots=True)
class FakeJobQueue:
    tables: Tables

    async def line(self) -> Line:
        states = [row.job.state for row in self.tables.jobs.values()]
        holders = [job for job in await FakeJobs(self.tables).where(HOLDS_PERMIT) if job.kind is not RelationKind.TABLE]
        return Line(new=JobState.INITIAL in states, queued=JobState.QUEUED in states, held=len(holders))

    async def waiting(self) -> Sequence[Queued]:
        return [Queued(job.id, job.created_by) for job in await FakeJobs(self.tables).where({JobState.QUEUED})]

    async def shares(self, tenants: Collection[str]) -> Mapping[str, Share]:
        every = [job for job in await FakeJobs(self.tables).where() if job.takes_permit]
        shares: dict[str, Share] = {}
        for tenant in tenants:
            its = [job for job in every if job.created_by == tenant]
            starts = [job.started_at for job in its if job.started_at is not None]
            shares[tenant] = Share(sum(job.state in HOLDS_PERMIT for job in its), max(starts, default=None))
        return shares

    async def plan_bytes(self) -> Mapping[str, int]:
        sizes = Counter[str]()
        for row in self.tables.jobs.values():
            if row.job.state not in TERMINAL:
                sizes[row.job.created_by] += row.plan_bytes
        return sizes

    async def unfinished_of(self, tenant: str) -> Sequence[Job]:
        unfinished = await FakeJobs(self.tables).where({JobState.INITIAL, JobState.QUEUED, *HOLDS_PERMIT})
        return [job for job in unfinished if job.created_by == tenant and job.takes_permit]

    async def too_slow(self, jobs: Collection[JobId], *, now: datetime) -> None:
        for job in await FakeJobs(self.tables).where(ids=jobs):
            self.tables.slow_views.put(job.created_by, SlowView(job.name, now))

    async def slow_view(self, tenant: str) -> SlowView | None:
        return self.tables.slow_views.get(tenant)

    async def prepare(self, job: JobId, text: str | None) -> None:
        row = self.tables.jobs[job]
        self.tables.jobs.put(
            job, replace(row, job=replace(row.job, preparing=None if text is None else printable(text)))
        )


def _without_positions(plan: FragmentPlan) -> FragmentPlan:
    return plan.model_copy(
        update={"actors": tuple(actor.model_copy(update={"positions": ()}) for actor in plan.actors)}
    )


@dataclass(frozen=True, slots=True)
class FakePlans:
    tables: Tables

    async def of(self, jobs: Collection[JobId]) -> Sequence[JobPlan]:
        found = [(one, self.tables.relations[self.tables.jobs[one].job.relation]) for one in sorted(set(jobs))]
        return [
            JobPlan(
                id=one,
                relation=relation.relation.without_defaults,
                hidden=tuple(row.relation for row in self.tables.hidden(relation.relation.id)),
                fragments=tuple(self._fragment(row) for row in self.tables.of_job(one)),
                snapshot=self._snapshot(one),
                caller=self.tables.jobs[one].job.created_by,
            )
            for one, relation in found
            if not relation.dropped
        ]

    async def outlines(self, jobs: Collection[JobId]) -> Sequence[JobPlan]:
        return [
            one.model_copy(update={"fragments": tuple(map(_without_positions, one.fragments))})
            for one in await self.of(jobs)
        ]

    async def staged(self) -> Sequence[JobId]:
        rows = self.tables.fragments.values()
        jobs = {row.job for row in rows if isinstance(row.query, Stage) and not row.query.is_projection}
        return sorted(job for job in jobs if self.tables.jobs[job].job.state is not JobState.FAILED)

    async def outputs(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[RelationId]]:
        stored = [row for _, row in sorted(self.tables.relations.items()) if row.relation.kind.stored]
        written = {job: [row.relation.id for row in stored if row.job == job] for job in jobs}
        return {job: outputs for job, outputs in written.items() if outputs}

    def _planned(self, relation: RelationId) -> Relation:
        return self.tables.relations[relation].relation.without_defaults

    def _snapshot(self, job: JobId) -> SnapshotPlan | None:
        its = self.tables.jobs[job].job
        if its.state is JobState.CREATED and its.own_graph is None:
            return None
        mine = [one for one in self.tables.snapshots.values() if one.job == job]
        return SnapshotPlan(epoch=mine[0].epoch, consumed=mine[0].consumed) if mine else None

    def _fragment(self, row: FragmentRow) -> FragmentPlan:
        finished = row.kind is FragmentKind.STREAM_SCAN and self.tables.scans[row.id].finished
        positions = {} if finished else self.tables.positions.get(row.id, {})
        actors = tuple(
            ActorPlan(
                id=actor.id,
                vnodes=actor.runs,
                positions=tuple(positions[vnode] for vnode in vnodes_of(actor.runs) if vnode in positions),
                rows=actor.rows if finished else 0,
            )
            for actor in self.tables.of_fragment(row.id)
        )
        match row.kind:
            case FragmentKind.DML:
                return DmlPlan(id=row.id, actors=actors)
            case FragmentKind.STREAM_SCAN:
                assert row.upstream is not None
                assert row.query is not None
                assert row.scan_type is not None
                return TableScanPlan(
                    id=row.id,
                    actors=actors,
                    rate_limit=row.rate_limit,
                    waiting=row.waiting,
                    finished=finished,
                    upstream=self._planned(row.upstream),
                    query=row.query,
                    scan_type=row.scan_type,
                    lookups=tuple(map(self._planned, row.reads[1:])),
                    output=row.output,
                    sink=row.connector,
                )
            case FragmentKind.CDC_SCAN:
                raise AssertionError(row)
            case FragmentKind.SOURCE_SCAN:
                assert row.connector is not None
                return SplitScanPlan(id=row.id, actors=actors, connector=row.connector)
            case FragmentKind.OPERATOR:
                assert isinstance(row.query, Stage)
                inputs = tuple(map(self._planned, row.query.relations))
                return OperatorPlan(id=row.id, actors=actors, query=row.query, inputs=inputs, output=row.output)


@dataclass(frozen=True, slots=True)
class FakeFailures:
    tables: Tables

    async def blame(self, job: JobId | None, *, graph: GraphId) -> int:
        failures = 0
        for one, row in list(self.tables.jobs.items()):
            lived = row.job.graph == graph and row.job.state is JobState.CREATING
            changed = replace(row.job, recoveries=row.job.recoveries + lived)
            if one == job:
                failures = changed.failures + 1
                changed = replace(changed, failures=failures)
            elif row.job.graph == graph:
                changed = replace(changed, failures=0)
            if changed != row.job:
                self.tables.jobs.put(one, replace(row, job=changed))
        return failures

    async def blamed(self, graph: GraphId) -> bool:
        return any(row.job.failures for row in self.tables.jobs.values() if row.job.graph == graph)


def _row_of(
    one: FragmentId, job: JobId, new: NewFragment, late: Collection[RelationId], ids: Mapping[RelationId, RelationId]
) -> FragmentRow:
    match new:
        case NewDml():
            return FragmentRow(one, job, FragmentKind.DML)
        case NewTableScan():
            return FragmentRow(
                one,
                job,
                FragmentKind.STREAM_SCAN,
                upstream=ids.get(new.upstream, new.upstream),
                query=new.query.with_ids(ids) if isinstance(new.query, Stage) else new.query,
                scan_type=new.scan_type,
                rate_limit=new.rate_limit,
                waiting=new.node in late,
                output=None if new.output is None else ids[hidden_id(new.output)],
                connector=new.sink,
            )
        case NewSourceScan():
            raise AssertionError(new)
        case NewSplitScan():
            kind = FragmentKind.SOURCE_SCAN
            return FragmentRow(one, job, kind, connector=new.connector)
        case NewOperator():
            output = None if new.output is None else ids[hidden_id(new.output)]
            return FragmentRow(one, job, FragmentKind.OPERATOR, query=new.query.with_ids(ids), output=output)


@dataclass(frozen=True, slots=True)
class FakeFragments:
    tables: Tables

    async def job_of(self, fragments: Collection[FragmentId]) -> Mapping[FragmentId, tuple[JobId, FragmentKind]]:
        rows = [self.tables.fragments[one] for one in fragments if one in self.tables.fragments]
        return {row.id: (row.job, row.kind) for row in rows}

    async def release(self, fragments: Collection[FragmentId]) -> None:
        for one in fragments:
            if row := self.tables.fragments.get(one):
                self.tables.fragments.put(one, replace(row, waiting=False))

    async def held(self, graph: GraphId) -> Sequence[JobId]:
        found: set[JobId] = set()
        for fragment, scan in self.tables.scans.items():
            row = self.tables.fragments[fragment]
            job = self.tables.jobs[row.job]
            creating = job.job.graph == graph and job.job.state is JobState.CREATING
            if row.waiting and creating and not scan.finished:
                found.add(row.job)
        return sorted(found)

    async def receded(self, reports: Sequence[ActorReport]) -> Receded | None:
        reporting = {report.fragment for report in reports}
        committed = {
            row.id: row
            for row in self.tables.actors.values()
            if row.fragment in reporting and (scan := self.tables.scans.get(row.fragment)) and not scan.finished
        }
        for report in reports:
            before = committed.get(report.actor)
            if before is not None and report.rows < before.rows:
                return self._receded(str(report.actor), report.fragment, report.rows, before.rows)
        known = {report.fragment for report in reports if report.actor in committed}
        for fragment in reporting - known:
            mine = [report for report in reports if report.fragment == fragment]
            before = [row.rows for row in committed.values() if row.fragment == fragment]
            told = sum(report.rows for report in mine)
            if before and told < sum(before):
                return self._receded(", ".join(str(one.actor) for one in mine), fragment, told, sum(before))
        return None

    async def record(self, answers: Iterable[Collected], *, now: datetime) -> None:
        kept = tuple(answers)
        for answer in kept:
            for told in answer.relations:
                if row := self.tables.relations.get(told.relation):
                    counted = replace(row, key_count=row.key_count + told.key_count_delta)
                    self.tables.relations.put(told.relation, counted)
        graphs = {answer.graph for answer in kept}
        mine = {
            fragment: self.tables.jobs[self.tables.fragments[fragment].job].job
            for fragment, scan in self.tables.scans.items()
            if not scan.finished
        }
        mine = {fragment: job for fragment, job in mine.items() if job.graph in graphs}
        reports = [report for answer in kept for report in answer.of(ActorReport) if report.fragment in mine]
        splits = {one for one, row in self.tables.fragments.items() if row.kind is FragmentKind.SOURCE_SCAN}
        for report in (one for answer in kept for one in answer.of(ActorReport)):
            if report in reports or report.fragment in splits:
                self._store(report)
        reported = {report.fragment for report in reports}
        for fragment, job in mine.items():
            started = self.tables.scans[fragment].at is not None
            if fragment in reported or (job.state in {JobState.CREATING, JobState.CREATED} and started):
                self._advance(fragment, now)

    async def scans(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[ScanProgress]]:
        return {one: self._scans(one) for one in jobs}

    async def store_texts(self, texts: Mapping[JobId, Json]) -> None:
        for job, text in texts.items():
            self.tables.jobs.put(job, replace(self.tables.jobs[job], progress=text))

    def _receded(self, actor: str, fragment: FragmentId, rows: int, committed: int) -> Receded:
        return Receded(actor, fragment, rows, self.tables.fragments[fragment].job, committed)

    def _store(self, report: ActorReport) -> None:
        if report.positions:
            stored = self.tables.positions.get(report.fragment, {})
            moved = {position.vnode: position for position in report.positions}
            self.tables.positions.put(report.fragment, {**stored, **moved})
        actor = self.tables.actors.get(report.actor)
        if actor is not None and actor.fragment == report.fragment:
            self.tables.actors.put(actor.id, replace(actor, rows=report.rows, finished=report.finished))

    def _advance(self, fragment: FragmentId, now: datetime) -> None:
        actors = self.tables.of_fragment(fragment)
        before = self._scan(self.tables.fragments[fragment])
        total = before.total
        rows, finished = sum(one.rows for one in actors), all(one.finished for one in actors)
        moved = advanced(before, rows=rows, total=total, finished=finished, at=now)
        pinned = self.tables.scans[fragment].total
        self.tables.scans.put(fragment, ScanRow(moved.rows, moved.rate, moved.finished, moved.at, pinned))

    def _scans(self, job: JobId) -> list[ScanProgress]:
        rows = [row for row in self.tables.of_job(job) if row.id in self.tables.scans]
        scans = [self._scan(row) for row in rows]
        if not any(row.waiting for row in rows):
            return scans
        ordered = [
            OrderedScan(row.id, node, scan.finished)
            for row, scan in zip(rows, scans, strict=True)
            if (node := self._node(row)) is not None
        ]
        waits = awaited(self.tables.jobs[job].order, ordered)
        named = {one: self.tables.relations[one].relation.name for before in waits.values() for one in before}
        return [
            replace(scan, awaits=tuple(named[one] for one in waits.get(scan.fragment, ()))) if scan.waiting else scan
            for scan in scans
        ]

    def _node(self, row: FragmentRow) -> RelationId | None:
        if not isinstance(row.query, Stage) or row.upstream is None:
            return row.upstream
        hidden = self.tables.relations[row.upstream].relation.kind is RelationKind.INTERNAL
        if row.query.is_projection and row.output is None and not hidden:
            return row.upstream
        return row.output or self.tables.jobs[row.job].job.relation

    def _scan(self, row: FragmentRow) -> ScanProgress:
        scan = self.tables.scans[row.id]
        assert row.upstream is not None
        upstream = self.tables.relations[row.upstream]
        keys = upstream.key_count if scan.total is None else scan.total
        total = None if row.waiting and upstream.owner is not None else keys
        return ScanProgress(
            fragment=row.id,
            upstream=upstream.relation.name,
            rows=scan.rows,
            total=None if total is None else max(total, scan.rows),
            rate=scan.rate,
            finished=scan.finished,
            rate_limit=row.rate_limit,
            at=scan.at,
            waiting=row.waiting and not scan.finished,
            scan_type=row.scan_type,
            limited_since=None if row.limit_epoch is None else instant_of(row.limit_epoch),
            limited_by=row.limit_by,
        )


@dataclass(frozen=True, slots=True)
class FakeActors:
    tables: Tables

    async def layouts(self, jobs: Collection[JobId]) -> Mapping[JobId, Mapping[FragmentId, Sequence[Runs]]]:
        return {
            job: {
                row.id: [actor.runs for actor in self.tables.of_fragment(row.id)]
                for row in self.tables.of_job(job)
                if row.kind in SCANS
            }
            for job in jobs
        }

    async def reserve(self, number: int) -> Sequence[ActorId]:
        return [ActorId(next(self.tables.ids)) for _ in range(number)]

    async def replace(self, fragments: Mapping[FragmentId, Sequence[ActorPlan]]) -> None:
        for fragment, plans in fragments.items():
            scan = self.tables.scans.get(fragment)
            if scan is None:
                continue
            for actor in self.tables.of_fragment(fragment):
                self.tables.actors.take(actor.id)
            stored = self.tables.positions.get(fragment, {})
            for plan in plans:
                rows = sum(stored[vnode].rows for vnode in vnodes_of(plan.vnodes) if vnode in stored)
                self.tables.actors.put(plan.id, ActorRow(plan.id, fragment, plan.vnodes, rows, scan.finished))


@dataclass(frozen=True, slots=True)
class FakeRescaling:
    tables: Tables

    async def set_parallelism(self, job: JobId, parallelism: Parallelism | None, backfill: Parallelism | None) -> None:
        row = self.tables.jobs[job]
        asked = replace(row.job, parallelism=parallelism, backfill_parallelism=backfill)
        self.tables.jobs.put(job, replace(row, job=asked, rescale_due=True))

    async def due(self, graph: GraphId) -> Sequence[Job]:
        running = {JobState.CREATING, JobState.CREATED}
        return [
            row.job
            for _, row in sorted(self.tables.jobs.items())
            if row.job.graph == graph and row.rescale_due and row.job.state in running
        ]

    async def settled(self, jobs: Collection[JobId]) -> None:
        for job in jobs:
            self.tables.jobs.put(job, replace(self.tables.jobs[job], rescale_due=False))

    async def all_due(self, graph: GraphId) -> None:
        running = {JobState.CREATING, JobState.CREATED}
        for one, row in list(self.tables.jobs.items()):
            if row.job.graph == graph and row.job.state in running and row.job.parallelism is not None:
                self.tables.jobs.put(one, replace(row, rescale_due=True))

    async def tied(self, jobs: Collection[JobId]) -> Mapping[JobId, Sequence[Job]]:
        makers = {row.job.relation: job for job, row in self.tables.jobs.items()}
        tied: dict[JobId, set[JobId]] = {one: set() for one in jobs}
        for row in self.tables.fragments.values():
            if row.scan_type is ScanType.BACKFILL and row.upstream is not None:
                for one in tied.keys() & {row.job, makers[row.upstream]}:
                    tied[one].add(row.job)
        found = {one: [self.tables.jobs[other].job for other in sorted(others)] for one, others in tied.items()}
        alive = CREATING | {JobState.CREATED}
        return {one: [job for job in others if job.state in alive] for one, others in found.items()}
