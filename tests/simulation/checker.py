"""What has to be true, said from the outside: what each relation holds at every committed epoch, given the statements
that were committed and the positions that are stored; what each epoch may read; what each acknowledgement promises.

It is told of every commit of the meta store, every publication and every page that is read, and keeps books of its own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from service.domain.job import IN_GRAPH, JobState
from service.ports.snapshots import Snapshot
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.dml import InsertStaged, StatementResult
from service.protocol.epoch import NEVER
from service.protocol.ids import (
    DATABASE_GRAPH,
    ActorId,
    CommandId,
    Epoch,
    FragmentId,
    Generation,
    GraphId,
    JobId,
    RelationId,
    StatementId,
    Vnode,
)
from service.protocol.mutation import Add, Mutation, Pause, Resume, StartFragmentBackfill, Throttle, Update
from service.protocol.plan import FragmentKind, PositionState, Prefix, VnodePosition
from service.protocol.relation import Relation, RelationKind
from service.protocol.report import Collected, DmlReport
from service.protocol.stage import Stage
from tests.simulation import dml, placement, shapes, stages
from tests.simulation.stage_session import summed
from tests.simulation.stages import Meaning
from tests.support.fake_meta_tables import BarrierRow, FragmentRow, JobRow, Journal, Tables
from tests.support.fake_state_store import StateStore, key_at, ranked, view_key
from tests.support.model import Key, Row
from workers.backfill.stages import BoundStage

Rows = dict[Key, Row]
Contents = Mapping[RelationId, Rows]
Actor = tuple[GraphId, Generation, ActorId]
"""A zombie's reads are its own: they are rolled back, and no limit of a later generation counts them."""
SLACK: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Control:
    """What holds in an epoch: the pause, the limits that were set since the scans were made, who was released."""

    paused: bool = False
    limits: Mapping[FragmentId, int | None] = field(default_factory=dict[FragmentId, int | None])
    released: frozenset[FragmentId] = frozenset()

    def without(self, fragments: Collection[FragmentId]) -> "Control":
        """Forget what was said of these scans."""
        kept = {one: limit for one, limit in self.limits.items() if one not in fragments}
        return replace(self, limits=kept, released=self.released.difference(fragments))

    def after(self, mutation: Mutation | None) -> "Control":
        match mutation:
            case Pause() | Resume():
                return replace(self, paused=isinstance(mutation, Pause))
            case Throttle(fragments=limits):
                return replace(self, limits={**self.limits, **limits})
            case StartFragmentBackfill(fragments=fragments):
                return replace(self, released=self.released.union(fragments))
            case _:
                return self


@dataclass
class Bucket:
    """What an actor may have read by now at most."""

    limit: int
    tokens: float
    at: float


@dataclass
class Checker:
    """Everything it says begins with the invariant that does not hold."""

    tables: Tables
    store: StateStore
    staged: dml.Staged
    interval: float
    committed: dict[GraphId, Epoch] = field(default_factory=dict[GraphId, Epoch])
    statements: dict[StatementId, tuple[Epoch, StatementResult]] = field(
        default_factory=dict[StatementId, tuple[Epoch, StatementResult]]
    )
    carried: dict[Epoch, Mutation | None] = field(default_factory=dict[Epoch, Mutation | None])
    merged: int = 0
    epochs: int = 0
    rows: dict[RelationId, Rows] = field(default_factory=dict[RelationId, Rows])
    """What DML has made of the tables, as of the committed epoch."""
    expected: dict[Epoch, Contents] = field(default_factory=dict[Epoch, Contents])
    control: dict[Epoch, Control] = field(default_factory=dict[Epoch, Control])
    _passed: list[Epoch] = field(default_factory=list[Epoch])
    """The epochs of the database graph, checkpoints or not."""
    _made: dict[FragmentId, FragmentRow] = field(default_factory=dict[FragmentId, FragmentRow])
    _present: dict[GraphId, Control] = field(default_factory=lambda: {DATABASE_GRAPH: Control()})
    _applied: dict[StatementId, int] = field(default_factory=dict[StatementId, int])
    _affected: dict[StatementId, int] = field(default_factory=dict[StatementId, int])
    _progress: dict[FragmentId, int] = field(default_factory=dict[FragmentId, int])
    _buckets: dict[Actor, Bucket] = field(default_factory=dict[Actor, Bucket])
    _began: dict[tuple[GraphId, Generation], float] = field(default_factory=dict[tuple[GraphId, Generation], float])
    _derived: dict[RelationId, tuple[list[Any], Rows]] = field(default_factory=dict[RelationId, tuple[list[Any], Rows]])

    # What it is told.

    def transaction(self, journal: Journal) -> None:
        """Look at what a transaction of the meta store has changed."""
        tables = self.tables
        ended: list[BarrierRow] = []
        for table, key, before in journal:
            if table is not tables.barriers:
                self._changed(table, key, before)
            elif key not in table:
                ended.append(before)
            elif table[key].state == "INJECTED":
                self._injected(table[key])
        for graph, row in tables.graphs.items():
            if row.committed != self.committed.get(graph, NEVER):
                rows = [one for one in ended if one.barrier.graph == graph]
                self._committed(graph, sorted(rows, key=lambda row: row.barrier.curr))

    def page_read(self, epoch: Epoch, fragment: FragmentId, actor: Actor, *, rows: int, at: float) -> None:
        """A worker, of whatever generation, has read a page of history in an epoch (I4)."""
        control = self.control.get(epoch)
        if control is None:
            return  # a zombie's, long after everybody has forgotten the epoch
        assert not control.paused, f"I4: a page was read in epoch {epoch}, which is paused"
        assert not self._waits(fragment, control), f"I4: fragment {fragment} did not wait for its order"
        limit = self._limit(fragment, control)
        assert limit != 0 or rows == 0, f"I4: fragment {fragment} read {rows} rows at limit 0"
        if limit is None:
            self._buckets.pop(actor, None)
            return
        size = max(1.0, limit * self.interval)
        bucket = self._buckets.get(actor)
        if bucket is None:
            # It starts empty with the generation, if not later.
            bucket = self._buckets[actor] = Bucket(limit, 0.0, self._began[actor[:2]])
        elif bucket.limit != limit:
            bucket = self._buckets[actor] = Bucket(limit, size, at)
        bucket.tokens = min(size, bucket.tokens + limit * (at - bucket.at)) - rows
        bucket.at = at
        assert bucket.tokens >= -SLACK, f"I4: actor {actor[2]} read more than {limit} rows/s"

    def published(self) -> None:
        """Users read: each sees a committed epoch, and all of it (I2)."""
        epoch = self.store.published.get(DATABASE_GRAPH, Epoch(0))
        contents = self.expected.get(epoch, {})
        for name, (relation, _) in self.store.public.items():
            if relation in contents and relation in self.store.tables:
                assert self.store.shown(name) == contents[relation], f"I2: {name} is not what it was at {epoch}"

    def readable(self, epoch: Epoch) -> None:
        """A reader that pinned an epoch reads it still."""
        for relation, rows in self.expected[epoch].items():
            found = self.tables.relations[relation]
            if not found.dropped and self.tables.jobs[found.job].job.state in IN_GRAPH:
                assert self.store.tables[relation].rows(epoch) == rows, f"I2: {relation} has changed at {epoch}"

    def acknowledged(self, command: CommandId, epoch: Epoch) -> None:
        """A command was answered with an epoch: that one carried it, and everybody sees it (I4)."""
        asked = self.tables.finished_commands[command]
        whole = command not in self.tables.parts
        assert not whole or asked.graph != DATABASE_GRAPH or epoch <= self.store.published[DATABASE_GRAPH], (
            f"I4: {epoch} is acknowledged and not published"
        )
        # Of several graphs that each carried a part this one's says what it was.
        mutation, own = asked.mutation, epoch if whole else asked.epoch
        assert own is not None, f"I4: command {command} is acknowledged and not done"
        carried = self.carried.get(own)
        assert self._says(own, command, mutation) or self._has_followed(command, mutation), (
            f"I4: {epoch} is acknowledged for {mutation} and carried {carried}"
        )

    def answered(self, statement: StatementId, affected: int) -> None:
        """A statement was answered: it has been applied once, and everybody sees it (I3)."""
        assert statement in self.statements, f"I3: statement {statement} is answered and was never committed"
        epoch, result = self.statements[statement]
        assert epoch <= self.store.published[DATABASE_GRAPH], f"I2: statement {statement} is answered and not published"
        assert result.affected == affected, f"I3: statement {statement} affected {result.affected} rows, not {affected}"

    def at_rest(self) -> None:
        """All is over: nothing is left of what was dropped, and every view is its query (I1, I9)."""
        tables = self.tables
        kept = {relation for relation, row in tables.relations.items() if not row.dropped}
        staying = {
            one.graph for one in tables.snapshots.values() if one.stays and tables.jobs[one.job].job.relation in kept
        }
        graphs = {DATABASE_GRAPH, *staying}
        assert set(tables.graphs) == graphs, f"I9: the graphs {sorted(tables.graphs)} are left"
        assert set(tables.snapshots) == staying, "I9: snapshot jobs are left"
        for stored in (self.store.fences, self.store.published, self.store.horizons):
            assert set(stored) <= graphs, f"I9: the state store knows of the graphs {sorted(stored)}"
        assert set(self.store.tables) == kept, f"I9: {set(self.store.tables) ^ kept} are left, or gone"
        names = {row.relation.name: row.owner is None for row in tables.relations.values() if not row.dropped}
        assert set(self.store.live) == set(names), "I9: views of alive rows are left, or gone"
        assert set(self.store.public) == {one for one, public in names.items() if public}, (
            "I9: public views are left, or gone"
        )
        owners = {tables.relations[relation].job for relation in kept}
        assert {row.job for row in tables.fragments.values()} <= owners, "I9: fragments are left"
        assert {row.fragment for row in tables.actors.values()} <= set(tables.fragments), "I9: actors are left"
        assert set(tables.positions) <= set(tables.fragments), "I9: positions are left"
        for relation in kept:
            job = tables.jobs[tables.relations[relation].job].job
            for scan in self._scans_of(job.id):
                complete = self._complete(scan)
                assert complete or job.state is JobState.FAILED, f"I1: the view of job {job.id} is not whole"

    def _has_followed(self, command: CommandId, mutation: Mutation | None) -> bool:
        """Whether a part of it was said where its scans had gone, or was not because they are no more."""
        parts = [self.tables.finished_commands[part] for part in self.tables.parts.get(command, ())]
        said = [self._says(part.epoch, part.id, mutation) for part in parts if part.epoch is not None]
        named = mutation.fragments if isinstance(mutation, Throttle | StartFragmentBackfill) else ()
        return bool(parts) and (any(said) or not any(one in self.tables.fragments for one in named))

    def _says(self, epoch: Epoch, command: CommandId, mutation: Mutation | None) -> bool:
        """Whether the barrier of an epoch said what a command asks, alone or with later commands of its kind."""
        match mutation, self.carried.get(epoch):
            case Throttle(fragments=asked), Throttle(fragments=said):
                # A command is finished with the epoch that commits it, so later ones may not be finished yet.
                commands = [*self.tables.commands.values(), *self.tables.finished_commands.values()]
                later = [one.mutation for one in commands if one.epoch == epoch and one.id > command]
                others = {scan for one in later if isinstance(one, Throttle) for scan in one.fragments}
                return all(scan in others or (scan in said and said[scan] == asked[scan]) for scan in asked)
            case StartFragmentBackfill(fragments=asked), StartFragmentBackfill(fragments=said):
                return set(asked) <= set(said)
            case _, carried:
                return mutation in (None, carried)

    # Epochs.

    def _changed(self, table: object, key: Any, before: Any) -> None:
        tables = self.tables
        if table is tables.parameters and before == "true" and tables.parameters[key] == "false":
            # Whatever becomes of the barrier that starts it, the generation is a paused one.
            self._present[DATABASE_GRAPH] = replace(self._present[DATABASE_GRAPH], paused=True)
        elif table is tables.graphs and key in tables.graphs:
            self._present.setdefault(key, Control(paused=tables.graphs[key].paused))
        elif table is tables.jobs and before is not None and key in tables.jobs:
            self._moved(key, before)
        elif table is tables.fragments and key in tables.fragments:
            self._made.setdefault(key, tables.fragments[key])
        elif table is tables.commands and key in tables.commands:
            self._asked(tables.commands[key].asked_by, tables.commands[key].mutation)

    def _moved(self, job: JobId, before: object) -> None:
        """What one graph made of a job's scans is where the next one begins."""
        if not isinstance(before, JobRow) or before.job.graph == self.tables.jobs[job].job.graph:
            return
        rows = {row.id: row for row in self.tables.of_job(job)}
        epochs, left = (*self.tables.barriers, *self.tables.history), before.job.graph
        own = {epoch for graph, epoch in epochs if graph == left != DATABASE_GRAPH}
        for epoch, control in list(self.control.items()):
            # In an epoch of its own graph a zombie may yet read: what held there stays so.
            self.control[epoch] = self._settled(control, rows) if epoch in own else control.without(rows)
        for graph, control in list(self._present.items()):
            self._present[graph] = control.without(rows)
        self._made.update(rows)

    def _settled(self, control: Control, fragments: Collection[FragmentId]) -> Control:
        """Say of each of these scans what holds for it, whatever becomes of it."""
        limits = {one: self._limit(one, control) for one in fragments}
        released = [one for one in fragments if not self._waits(one, control)]
        return replace(control, limits={**control.limits, **limits}, released=control.released.union(released))

    def _injected(self, row: BarrierRow) -> None:
        barrier = row.barrier
        if barrier.kind is BarrierKind.INITIAL:
            self._began[barrier.graph, barrier.generation] = self.store.seconds()
        assert barrier.curr not in self.carried, f"I3: epoch {barrier.curr} was given twice"
        served = self.tables.workers[row.worker].registration.graph
        assert served == self._serving(barrier.graph), f"I10: a worker of {served} runs graph {barrier.graph}"
        first = barrier.kind is BarrierKind.INITIAL or barrier.prev == self.committed.get(barrier.graph)
        base = self._present[barrier.graph] if first else self.control[barrier.prev]
        control = self.control[barrier.curr] = base.after(barrier.mutation)
        self.carried[barrier.curr] = barrier.mutation
        if isinstance(barrier.mutation, Add):
            self._added(barrier, barrier.mutation, control)

    def _serving(self, graph: GraphId) -> GraphId:
        """Return for which graph the workers of this one register."""
        own = [one for one in self.tables.jobs.values() if one.job.graph == graph and one.job.serverless]
        return graph if own else DATABASE_GRAPH

    def _added(self, barrier: Barrier, add: Add, control: Control) -> None:
        """What a worker is given to build is what was committed last (I3, I4)."""
        initial = barrier.kind is BarrierKind.INITIAL
        assert not initial or add.paused == control.paused, "I4: a recovery forgot the pause"
        for plan in add.jobs:
            for fragment in plan.table_scans:
                limit, waits = self._limit(fragment.id, control), self._waits(fragment.id, control)
                assert fragment.rate_limit == limit, f"I4: fragment {fragment.id} starts without its limit"
                assert fragment.waiting == waits, f"I4: fragment {fragment.id} starts at another place in the order"

    def _asked(self, asked_by: str, mutation: Mutation | None) -> None:
        """The backfill order lets a scan begin only when everything before it is through (I4)."""
        if asked_by != "the backfill order" or not isinstance(mutation, StartFragmentBackfill):
            return
        for fragment in mutation.fragments:
            row = self.tables.fragments.get(fragment)
            if row is None:
                continue
            before = {one for one, after in self.tables.jobs[row.job].order if after == self._node(row)}
            for other in self._scans_of(row.job):
                whole = self._node(other) not in before or self._complete(other)
                assert whole, f"I4: fragment {fragment} is started before {other.id} is through"

    def _node(self, scan: FragmentRow) -> RelationId | None:
        """Return a scan's node of the backfill order: what it reads, or what a stage writes."""
        if not isinstance(scan.query, Stage) or scan.upstream is None:
            return scan.upstream
        hidden = self.tables.relations[scan.upstream].relation.kind is RelationKind.INTERNAL
        own = scan.query.is_projection and scan.output is None and not hidden
        return scan.upstream if own else self._output(scan)

    def _output(self, scan: FragmentRow) -> RelationId:
        return self.tables.jobs[scan.job].job.relation if scan.output is None else scan.output

    def _committed(self, graph: GraphId, rows: list[BarrierRow]) -> None:
        prev = self.committed.get(graph, NEVER)
        for row in rows:
            barrier = row.barrier
            assert barrier.prev == prev, f"I3: epoch {barrier.curr} comes after {barrier.prev}, not after {prev}"
            assert isinstance(row.answer, Collected), f"I3: epoch {barrier.curr} was committed and not collected"
            prev = barrier.curr
            self._apply(barrier, row.answer)
            self._reached_its_graph(barrier)
        assert prev == self.tables.graphs[graph].committed, "I3: the committed epoch is not the last one"
        self.committed[graph], self._present[graph] = prev, self.control[prev]
        self.epochs += len(rows)
        for fragment in _rescaled(rows):
            placement.check_owners(self.tables, fragment)
        placement.check_tied(self.tables)
        self._check_progress()
        if graph != DATABASE_GRAPH:
            self._check_snapshot(self.tables.snapshots[graph])
            self.merged += self.tables.snapshots[graph].merged
            return
        self._passed += [row.barrier.curr for row in rows]
        self.expected[prev] = self._check_contents(prev)
        for snapshot in self.tables.snapshots.values():
            if snapshot.merged:
                self._check_snapshot(snapshot)
        # A graph that is stuck commits its epoch long after the others' have been forgotten.
        open_ = {epoch for _, epoch in self.tables.barriers}
        published = self.store.published.get(DATABASE_GRAPH, 0)
        for old in [epoch for epoch in self.control if epoch < published and epoch not in open_][:-64]:
            del self.control[old]

    def _reached_its_graph(self, barrier: Barrier) -> None:
        """Where the database graph speaks of another graph's scans, that one speaks of them as well (I4)."""
        if barrier.graph != DATABASE_GRAPH:
            return  # with this commit a job may have moved
        match barrier.mutation:
            case Throttle(fragments=limits):
                told = [*limits]
            case StartFragmentBackfill(fragments=released):
                told = [*released]
            case _:
                return
        for fragment in told:
            row = self.tables.fragments.get(fragment)
            graph = DATABASE_GRAPH if row is None else self.tables.jobs[row.job].job.graph
            assert graph == DATABASE_GRAPH or fragment in self._told(graph), (
                f"I4: fragment {fragment} of graph {graph} is not told there"
            )

    def _told(self, graph: GraphId) -> set[FragmentId]:
        """Return the scans that a graph has been asked to limit or to start."""
        commands = [*self.tables.commands.values(), *self.tables.finished_commands.values()]
        mine = [one.mutation for one in commands if one.graph == graph]
        asked = [one for one in mine if isinstance(one, Throttle | StartFragmentBackfill)]
        return {fragment for one in asked for fragment in one.fragments}

    def _apply(self, barrier: Barrier, answer: Collected) -> None:
        results = {result.id: result for dml in answer.of(DmlReport) for result in dml.results}
        unfinished = [dml.unfinished for dml in answer.of(DmlReport)]
        left = [one for of in unfinished for one in (*of.not_reached, *of.set_aside)]
        assert sorted((*results, *left)) == sorted(one.id for one in barrier.statements), (
            "I3: statements and results do not match"
        )
        for statement in barrier.statements:
            if statement.id in left:
                continue
            if isinstance(statement, InsertStaged):
                applied = self._applied.get(statement.id, 0)
                assert statement.first == applied, f"I3: statement {statement.id} goes on at {statement.first}"
                self._applied[statement.id] = statement.last
            else:
                assert statement.id not in self.statements, f"I3: statement {statement.id} was applied twice"
            expected = results[statement.id]
            if not self.tables.relations[statement.relation.id].dropped:
                rows = dict(self.rows.get(statement.relation.id, {}))
                expected, _ = dml.apply(statement, rows, self.staged)
                assert results[statement.id] == expected, f"I3: statement {statement.id} gave something else"
                self.rows[statement.relation.id] = rows
            affected = self._affected[statement.id] = self._affected.get(statement.id, 0) + expected.affected
            whole = expected.model_copy(update={"affected": affected})
            self.statements[statement.id] = (barrier.curr, whole)

    def _check_progress(self) -> None:
        tables = self.tables
        for fragment, scan in tables.scans.items():
            assert scan.rows >= self._progress.get(fragment, 0), f"I6: fragment {fragment} has lost rows"
            if scan.rows != self._progress.get(fragment) or scan.finished:
                self._progress[fragment] = scan.rows
                counted = sum(position.rows for position in tables.positions.get(fragment, {}).values())
                assert counted == scan.rows, f"I11: fragment {fragment} counts {scan.rows} rows and read {counted}"
            row = tables.fragments[fragment]
            assert not scan.finished or self._complete(row), f"I6: fragment {fragment} is finished and not complete"
            state = tables.jobs[row.job].job.state
            assert scan.finished or state is not JobState.CREATED, f"I6: job {row.job} is created and not finished"

    def _check_snapshot(self, snapshot: Snapshot) -> None:
        """A snapshot job holds its query over one epoch of the past: what it pinned, or has replayed up to."""
        job, committed = self.tables.jobs[snapshot.job], self.tables.graphs[snapshot.graph].committed
        if job.job.state is not JobState.CREATING and not (snapshot.stays and job.job.state is JobState.CREATED):
            return
        at = snapshot.epoch if snapshot.consumed is None else snapshot.consumed
        read = next(epoch for epoch in reversed(self._passed) if epoch <= at)
        if read not in self.expected:
            return  # a span may end at a barrier that was no checkpoint
        contents = dict(self.expected[read])
        for each in {one for row in self.tables.of_job(snapshot.job) for one in row.reads} - contents.keys():
            # It has a graph of its own, and is compared when that commits.
            contents[each] = self.store.tables[each].rows(at) if each in self.store.tables else {}
        # What the database graph has begun to write of a merged one is of later epochs.
        upto = max(committed, self.committed[DATABASE_GRAPH]) if snapshot.merged else committed
        for row in (*self.tables.hidden(job.job.relation), self.tables.relations[job.job.relation]):
            relation, name = row.relation.id, row.relation.name
            found, expected = self.store.tables[relation].rows(upto), self._rows(relation, job, contents)
            every = {**found, **self._unmerged(row.relation, job, upto)}
            assert every == expected, f"I1: {name} holds {_difference(every, expected)} of {at} at {upto}"
            assert row.key_count == len(found), f"I6: {name} counts {row.key_count} keys and has {len(found)}"
            contents[relation] = expected

    def _unmerged(self, relation: Relation, job: JobRow, upto: Epoch) -> Rows:
        """Return the groups that partial groups make in the vnodes that have no group yet."""
        table = self.store.tables[relation.id]
        merged = {one.vnode for one in table.versions if one.start <= upto < one.end}
        left = [one for one in table.partials or () if one.epoch <= upto and one.vnode not in merged]
        if not left:
            return {}
        scan = next(one for one in self._scans_of(job.job.id) if self._output(one) == relation.id)
        assert isinstance(scan.query, Stage)
        known = self.tables.relations
        meaning = Meaning.of(BoundStage(scan.query, relation, {one: known[one].relation for one in scan.reads}))
        return {key: meaning.group(sums) for key, sums in summed(left).items()}

    def _alone(self) -> set[JobId]:
        """Return the jobs that are not what they read is at the database graph's epoch."""
        creating = {JobState.CREATING, JobState.CANCELLING}
        rows = self.tables.snapshots.values()
        return {one.job for one in rows if one.stays or self.tables.jobs[one.job].job.state in creating}

    def _check_contents(self, epoch: Epoch) -> Contents:
        contents: dict[RelationId, Rows] = {}
        earlier = self.expected[max(self.expected)] if self.expected else {}
        alone = self._alone()
        for relation, row in sorted(self.tables.relations.items()):
            job = self.tables.jobs[row.job]
            state = job.job.state
            if row.dropped or row.job in alone or state in {JobState.INITIAL, JobState.QUEUED}:
                continue
            if job.job.failed:
                contents[relation] = earlier[relation]
            else:
                contents[relation] = self._rows(relation, job, contents)
            found = self.store.tables[relation].rows(epoch)
            name = row.relation.name
            assert found == contents[relation], f"I1: {name} holds {_difference(found, contents[relation])} at {epoch}"
            assert row.key_count == len(found), f"I6: {name} counts {row.key_count} keys and has {len(found)}"
        return contents

    def _rows(self, relation: RelationId, job: JobRow, contents: Contents) -> Rows:
        """Return what a relation holds, given what its upstreams hold; nothing is worked out twice."""
        operators = [one for one in self.tables.of_job(job.job.id) if one.kind is FragmentKind.OPERATOR]
        if operators:
            return self._operated(relation, job, [one for one in operators if self._output(one) == relation], contents)
        scans = [one for one in self._scans_of(job.job.id) if self._output(one) == relation]
        if not scans:
            return self.rows.setdefault(relation, {})
        made_of: list[Any] = []
        for scan in scans:
            made_of += [*(contents[one] for one in scan.reads), self.tables.positions.get(scan.id)]
        known = self._derived.get(relation)
        if known is not None and all(one is other for one, other in zip(known[0], made_of, strict=True)):
            return known[1]
        rows: Rows = {}
        for scan in scans:
            assert scan.upstream is not None
            if isinstance(scan.query, Stage) and not shapes.is_branch(scan.query):
                rows.update(self._stage(scan, scan.query, contents, relation))
            else:
                rows.update(self._branch(scan, contents[scan.upstream], relation))
        self._derived[relation] = (made_of, rows)
        return rows

    def _operated(
        self, relation: RelationId, job: JobRow, operators: Sequence[FragmentRow], contents: Contents
    ) -> Rows:
        """Return what operators give over the prefixes of their inputs (I1 in its general form)."""
        known = self.tables.relations
        every = [one for one in self.tables.of_job(job.job.id) if one.kind is FragmentKind.OPERATOR]
        rows: Rows = {}
        for one in operators:
            assert isinstance(one.query, Stage)
            read = {each: known[each].relation for each in one.reads}
            meaning = Meaning.of(BoundStage(one.query, known[relation].relation, read))
            states: dict[Any, Rows] = {each: contents[each] for each in one.reads}
            for scan in self._scans_of(job.job.id):
                assert isinstance(scan.query, Prefix)
                assert scan.upstream is not None
                if every[scan.query.operator] == one:
                    states[scan.query.alias] = self._prefix(scan, scan.upstream, contents)
            rows.update(stages.whole(meaning, states))
        return rows

    def _prefix(self, scan: FragmentRow, upstream: RelationId, contents: Contents) -> Rows:
        positions = self.tables.positions.get(scan.id, {})
        placed = {version.key: version.vnode for version in self.store.tables[upstream].versions}
        rows = contents[upstream].items()
        return {key: row for key, row in rows if _reached(positions.get(Vnode(placed[key])), key)}

    def _branch(self, scan: FragmentRow, upstream: Rows, relation: RelationId) -> Rows:
        assert isinstance(scan.query, Stage)
        assert scan.upstream is not None
        query, branch = shapes.query_of(scan.query), shapes.branch_of(scan.query)
        parts = len(self.tables.relations[relation].relation.key)
        positions = self.tables.positions.get(scan.id, {})
        rows: Rows = {}
        placed = {version.key: version.vnode for version in self.store.tables[scan.upstream].versions}
        for key, row in upstream.items():
            if _reached(positions.get(Vnode(placed[key])), key):
                try:
                    out = query(row)
                except shapes.CannotTransformError:
                    raise AssertionError("I1: a row that nobody can transform was passed on") from None
                if out is not None:
                    rows[view_key(branch, key, parts)] = out
        return rows

    def _stage(self, scan: FragmentRow, stage: Stage, contents: Contents, relation: RelationId) -> Rows:
        """Return what a stage gives over the prefix of its driver that was read; all of it, once that is complete."""
        known = self.tables.relations
        meaning = Meaning.of(
            BoundStage(stage, known[relation].relation, {one: known[one].relation for one in scan.reads})
        )
        if self._complete(scan):
            return stages.whole(meaning, contents)
        driver = stage.driver.relation
        positions = self.tables.positions.get(scan.id, {})
        placed = {version.key: version.vnode for version in self.store.tables[driver].versions}

        def read(key: Key) -> bool:
            return _reached(positions.get(Vnode(placed[key])), key)

        if stage.is_whole or not positions:
            return {}
        if stage.partition is not None:
            return stages.begun(meaning, contents[driver], placed.__getitem__, read)
        return stages.over(meaning, contents, {key: row for key, row in contents[driver].items() if read(key)})

    # Scans.

    def _scans_of(self, job: JobId) -> list[FragmentRow]:
        return [row for row in self.tables.of_job(job) if row.kind is FragmentKind.STREAM_SCAN]

    def _complete(self, scan: FragmentRow) -> bool:
        """Whether every vnode of the upstream is."""
        assert scan.upstream is not None
        positions = self.tables.positions.get(scan.id, {})
        done = sum(position.state is PositionState.COMPLETED for position in positions.values())
        return done == self.tables.relations[scan.upstream].relation.vnode_count

    def _limit(self, fragment: FragmentId, control: Control) -> int | None:
        return control.limits[fragment] if fragment in control.limits else self._made[fragment].rate_limit

    def _waits(self, fragment: FragmentId, control: Control) -> bool:
        return self._made[fragment].waiting and fragment not in control.released


def _rescaled(rows: list[BarrierRow]) -> list[FragmentId]:
    updates = [row.barrier.mutation for row in rows if isinstance(row.barrier.mutation, Update)]
    return [fragment for update in updates for fragment in update.fragments]


def _reached(position: VnodePosition | None, key: Key) -> bool:
    if position is None:
        return False
    if position.key is None:
        return True
    return ranked(key) <= ranked(key_at(position.key))


def _difference(found: Rows, expected: Rows) -> str:
    missing = {key: row for key, row in expected.items() if key not in found}
    extra = {key: row for key, row in found.items() if key not in expected}
    other = {key: (found[key], row) for key, row in expected.items() if key in found and found[key] != row}
    return f"too much {extra}, too little {missing}, something else {other}"
