"""What the users of a schedule do: each action is one call to a service, which may die before it answers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

from service.domain.errors import Invalid
from service.domain.job import CREATING, JobState
from service.domain.parallelism import Adaptive, Fixed, Parallelism, resolved
from service.operations import idempotency
from service.operations.commands import limits, mutations
from service.operations.jobs import lifecycle, rescaling
from service.operations.rows import dml as accepted
from service.operations.world import World
from service.ports.audit import itself
from service.ports.records import Claim, NewJob
from service.protocol.dml import Delete, InsertStaged, InsertValues, Statement, Update
from service.protocol.ids import DATABASE_GRAPH, CommandId, JobId, RelationId, StatementId
from service.protocol.mutation import Mutation, Pause, Resume
from service.protocol.plan import ScanType
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Stage
from tests.simulation import shapes, stages
from tests.simulation.checker import Checker
from tests.simulation.decoupling import BRIEFLY
from tests.simulation.dml import DIVISION, written
from tests.simulation.kernel import Kernel
from tests.simulation.service_process import Staged
from tests.support.fake_meta_tables import Tables

Call = Callable[[World], Awaitable[None]]

KEYS = 24
VALUES = 12
"""With `shapes.UNLUCKY` beyond them: only what is meant to fail does."""


@dataclass
class Insistence:
    """A client that repeats its call, with its key, until it is answered (I3)."""

    key: str
    checker: Checker
    relation: Relation
    row: tuple[int, int]
    reserved: list[StatementId] = field(default_factory=list[StatementId])
    answered: bool = False
    refused: bool = False

    async def call(self, world: World) -> None:
        """Call once."""

        async def insert(claim: Claim | None) -> Mapping[str, int]:
            statement = await accepted.reserve(world)
            self.reserved.append(statement)
            insert = _insert(statement, self.relation, [self.row])
            return {"affected": await accepted.run(world, insert, asked_by=itself("a user"), claim=claim)}

        try:
            response = await idempotency.once(world, self.key, b"insert", insert, caller="workload")
        except Invalid:
            self.answered = self.refused = True  # its table is gone
            return
        assert response == {"affected": 1}, f"I3: {self.key} was answered with {response}"
        self.answered = True

    def check(self) -> None:
        """However often it was called, it was done once."""
        assert self.answered, f"{self.key} was never answered"
        applied = [one for one in self.reserved if one in self.checker.statements]
        done = [one for one in applied if self.checker.statements[one][1].error is None]
        assert len(done) == (not self.refused), f"I3: {self.key} was done by the statements {done}"


@dataclass
class Users:
    """Draws what is done next, knowing all that there is."""

    kernel: Kernel
    tables: Tables
    checker: Checker
    staged: Staged
    vnode_count: int
    slots: int
    disturbed: Callable[[float], None]
    strategies: Sequence[ScanType] = tuple(ScanType)
    unlucky: bool = False
    """Whether there are rows that some views cannot transform."""
    staging: bool = False
    """Whether some views are chains of stages."""
    numbered: int = 0
    insisting: list[Insistence] = field(default_factory=list[Insistence])

    @property
    def random(self) -> Random:
        return self.kernel.random

    def begin(self) -> Call:
        """Create a table with some rows."""
        self.numbered += 1
        vnode_count = self.random.choice((self.vnode_count, self.vnode_count, 1 + self.random.randrange(3)))
        relation = shapes.table(self._name("t"), vnode_count)
        rows = [
            (self.random.randrange(KEYS), self.random.randrange(VALUES)) for _ in range(self.random.choice((0, 10, 40)))
        ]

        async def call(world: World) -> None:
            asked = await lifecycle.create(
                world, lifecycle.table_job(relation, "create table"), if_not_exists=False, asked_by=itself("a user")
            )
            job = await lifecycle.created(world, asked.job)
            if rows:
                stored = relation.model_copy(update={"id": job.relation})
                statement = await accepted.reserve(world)
                await self._run(world, _insert(statement, stored, rows), wait=False)

        return call

    def next(self) -> Call | None:
        """Draw an action; None where there is nothing to act on."""
        action = self.random.choices(_ACTIONS, _WEIGHTS)[0]
        return action(self)

    def write(self) -> Call | None:
        relation = self._one(RelationKind.TABLE)
        if relation is None:
            return None
        key, other, value = (self.random.randrange(most) for most in (KEYS, KEYS, VALUES))
        rows = [(self.random.randrange(KEYS), self.random.randrange(VALUES)) for _ in range(self.random.randint(1, 4))]
        verb, wait = self.random.randrange(12), not self.random.randrange(6)
        if self.unlucky and not self.random.randrange(4):
            rows, verb = [(key, shapes.UNLUCKY)], _INSERT

        async def call(world: World) -> None:
            statement = await accepted.reserve(world)
            await self._run(world, _statement(verb, statement, relation, rows, (key, other, value)), wait=wait)

        return call

    def load(self) -> Call | None:
        """Insert staged rows, in slices."""
        relation = self._one(RelationKind.TABLE)
        if relation is None:
            return None
        rows = [(self.random.randrange(KEYS), self.random.randrange(VALUES)) for _ in range(self.random.randint(1, 9))]

        async def call(world: World) -> None:
            statement = await accepted.reserve(world)
            insert = InsertStaged(id=statement, relation=relation, columns=("k", "v"), first=0, last=len(rows))
            with self.staged.filling(statement, rows):
                await self._run(world, insert, wait=False, staged_rows=len(rows))

        return call

    def create(self) -> Call | None:
        """Create a view over whatever can be read."""
        if self.staging and self.random.randrange(2) and (staged := self._stages()) is not None:
            return staged
        branches = self._branches()
        if branches is None:
            return None
        random = self.random
        self.numbered += 1
        scan_type = random.choice(self.strategies)
        if any(self._stays(upstream.id) for upstream, _ in branches):
            scan_type = ScanType.SNAPSHOT_BACKFILL
        serverless = scan_type is ScanType.SNAPSHOT_BACKFILL and bool(random.randrange(2))
        tied = scan_type is ScanType.BACKFILL
        parallelism = None if tied else self._parallelism()
        backfill = None if tied else random.choice((None, None, Fixed(random.randint(1, self.vnode_count))))
        planned = partial(
            shapes.view,
            self._name("m"),
            branches,
            parallelism=parallelism,
            backfill=backfill,
            rate_limit=random.choice((None, None, None, 0, 2, 5)),
            order=self._order([upstream.id for upstream, _ in branches]),
            scan_type=scan_type,
        )
        wait = random.choice((lifecycle.created, lifecycle.begun, None, None, None, None))

        async def call(world: World) -> None:
            new = planned(actors=await self._actors(world, branches, backfill or parallelism))
            new = replace(new, serverless=serverless, own_graph=self._own_graph(new))
            asked = await lifecycle.create(world, new, if_not_exists=False, asked_by=itself("a user"))
            if wait is not None:
                await wait(world, asked.job)

        return call

    def _stages(self) -> Call | None:
        """Create a view of stages over something that can be read and a table."""
        random = self.random
        readable = [one for one in self._readable() if len(one.key) < 3]
        tables = [one for one in readable if one.kind is RelationKind.TABLE]
        if not tables:
            return None
        self.numbered += 1
        first, second = random.choice(readable), random.choice(tables)
        chain = random.choice(stages.CHAINS)(first, second)
        of_both: dict[str, Any] = {
            "parallelism": self._parallelism(),
            "backfill": random.choice((None, None, Fixed(random.randint(1, self.vnode_count)))),
            "rate_limit": random.choice((None, None, None, 0, 2, 5)),
            "slots": self.slots,
        }
        name = self._name("m")
        if random.randrange(2) and not any(self._stays(one.id) for one in (first, second)):
            used = {one.relation for stage in chain.stages for one in stage.inputs}
            bases = [one for one in (first, second) if one.id in used]
            order = self._order([one.id for one in bases])
            of_both["other_limit"] = random.choice((None, None, 2))
            planned = partial(shapes.view_of_operators, name, chain, bases, order=order, **of_both)
        else:
            serverless = bool(random.randrange(2))
            planned = partial(shapes.view_of_stages, name, chain, serverless=serverless, **of_both)
        wait = random.choice((lifecycle.created, lifecycle.begun, None, None, None, None))

        async def call(world: World) -> None:
            new = planned()
            new = replace(new, own_graph=self._own_graph(new))
            asked = await lifecycle.create(world, new, if_not_exists=False, asked_by=itself("a user"))
            if wait is not None:
                await wait(world, asked.job)

        return call

    def _own_graph(self, new: NewJob) -> str | None:
        """Return why a job stays in a graph of its own: some do, and all that read one that does.

        A view of another strategy reads no such relation (`_readable`).
        """
        if new.table_scans[0].scan_type is not ScanType.SNAPSHOT_BACKFILL:
            return None
        if any(self._stays(one) for one in new.upstreams):
            return "it reads one that stays"
        return "its name ends with 3 or 7" if new.relation.name[-1] in "37" else None

    def _stays(self, relation: RelationId) -> bool:
        return self.tables.jobs[self.tables.relations[relation].job].job.own_graph is not None

    def pause(self) -> Call:
        return self._command(Pause())

    def resume(self) -> Call:
        return self._command(Resume())

    def flush(self) -> Call:
        return self._command(None)

    def throttle(self) -> Call | None:
        job = self._creating() or self._view(JobState.CREATED)
        return None if job is None else self.throttle_one(job)

    def throttle_one(self, job: JobId) -> Call:
        limit = self.random.choice((None, 0, 1, 3, 8))
        return self._awaited(lambda world: limits.throttle_job(world, job, limit, asked_by=itself("a user")))

    def hold(self) -> Call | None:
        job = self._creating()
        return None if job is None else self.hold_one(job)

    def hold_one(self, job: JobId) -> Call:
        """Pause one job, or let it go on."""
        ask = self.random.choice((limits.pause_job, limits.resume_job))
        return self._awaited(lambda world: ask(world, job, asked_by=itself("a user")))

    def start(self) -> Call | None:
        job = self._creating()
        return None if job is None else self.start_one(job)

    def start_one(self, job: JobId) -> Call:
        return self._awaited(lambda world: mutations.start_job(world, job, asked_by=itself("a user")))

    def rescale(self) -> Call | None:
        job = self._creating() if self.random.randrange(4) else self._view(JobState.CREATED)
        return None if job is None else self.rescale_one(job)

    def rescale_one(self, job: JobId) -> Call:
        name = self.random.choice(("parallelism", "backfill_parallelism"))
        changes: Mapping[str, Parallelism | None] = {name: self._parallelism()}
        return self._awaited(lambda world: rescaling.alter(world, job, changes, asked_by=itself("a user")))

    def cancel(self) -> Call | None:
        job = self._creating()
        return None if job is None else self.cancel_one(job)

    def cancel_one(self, job: JobId) -> Call:
        others = [job, *filter(None, [self._creating()])] if not self.random.randrange(4) else [job]

        async def call(world: World) -> None:
            await lifecycle.cancel(world, others, asked_by=itself("a user"))

        return call

    def drop(self) -> Call | None:
        kind = RelationKind.MATERIALIZED_VIEW if self.random.randrange(5) else RelationKind.TABLE
        relation = self._one(kind)
        return None if relation is None else self._drop(relation.name, kind)

    def drop_one(self, job: JobId) -> Call:
        found = self.tables.jobs[job].job
        return self._drop(found.name, found.kind)

    def _drop(self, name: str, kind: RelationKind) -> Call:
        cascade = bool(self.random.randrange(4))

        async def call(world: World) -> None:
            await lifecycle.drop(world, name, kind, cascade=cascade, asked_by=itself("a user"))

        return call

    def ambush(self, job: JobId) -> Call:
        """Do something with a job that has just come into another phase."""
        return self.random.choices(_AMBUSHES, _AMBUSH_WEIGHTS)[0](self, job)

    def pause_next(self) -> Call:
        """Have the next generation start paused."""

        async def call(world: World) -> None:
            async with world.stores.begin() as tx:
                await tx.parameters.set("pause_on_next_bootstrap", "true")

        return call

    def recover(self) -> Call:
        async def call(world: World) -> None:
            self.disturbed(BRIEFLY)
            await mutations.recover(world, asked_by=itself("an operator"))

        return call

    def insist(self) -> Insistence | None:
        """Repeat one insert with its idempotency key until it is answered."""
        relation = self._one(RelationKind.TABLE)
        if relation is None:
            return None
        self.numbered += 1
        row = (self.random.randrange(KEYS), self.random.randrange(VALUES))
        client = Insistence(f"key {self.numbered}", self.checker, relation, row)
        self.insisting.append(client)
        return client

    def read(self) -> Call:
        """Pin what is published, and read it again later."""
        self.numbered += 1
        holder, seconds = f"reader {self.numbered}", self.random.choice((0.1, 1.0, 5.0))

        async def call(world: World) -> None:
            async with world.stores.begin() as tx:
                epoch = (await tx.graphs.state(DATABASE_GRAPH)).published
            if epoch not in self.checker.expected:
                return
            async with world.state_store.pins.pin(DATABASE_GRAPH, epoch, holder=holder):
                self.kernel.stop(seconds)
                self.checker.readable(epoch)

        return call

    def lift(self) -> Call:
        """Take back whatever holds history up."""

        async def call(world: World) -> None:
            if self.tables.commands:
                return  # each has a barrier of its own: more of them would hold up what they are for
            if any(graph.paused for graph in self.tables.graphs.values()):
                await mutations.inject(world, Resume(), asked_by=itself("the end"))
            for job, row in sorted(self.tables.jobs.items()):
                if row.job.state in {JobState.QUEUED, JobState.CREATING}:
                    scans = self.tables.of_job(job)
                    if any(one.rate_limit is not None for one in scans):
                        await limits.throttle_job(world, job, None, asked_by=itself("the end"))
                    # A stage starts when what it reads is complete, and not before.
                    if any(
                        one.waiting and shapes.is_branch(one.query) for one in scans if isinstance(one.query, Stage)
                    ):
                        await mutations.start_job(world, job, asked_by=itself("the end"))

        return call

    async def _run(self, world: World, statement: Statement, *, wait: bool, staged_rows: int | None = None) -> None:
        if wait:
            self.checker.answered(statement.id, await accepted.run(world, statement, asked_by=itself("a user")))
            return
        async with world.stores.begin() as tx:
            caller = itself("a user").actor
            await tx.statements.add(statement, now=world.clock.now(), staged_rows=staged_rows, caller=caller)
        world.signals.notify()

    def _command(self, mutation: Mutation | None) -> Call:
        return self._awaited(lambda world: mutations.inject(world, mutation, asked_by=itself("a user")))

    def _awaited(self, ask: Callable[[World], Awaitable[CommandId]]) -> Call:
        wait = not self.random.randrange(3)

        async def call(world: World) -> None:
            command = await ask(world)
            if wait:
                self.checker.acknowledged(command, await mutations.applied(world, command))

        return call

    def _branches(self) -> list[shapes.Branch] | None:
        """Draw what a view reads: tables, and views of any strategy."""
        readable = self._readable()
        if not readable:
            return None
        random = self.random
        derived = [one for one in readable if one.kind is RelationKind.MATERIALIZED_VIEW]
        among = derived if derived and random.randrange(2) else readable
        branches = [(random.choice(among), random.choice(shapes.HARMLESS)) for _ in range(random.choice((1, 1, 2, 3)))]
        if self.unlucky and random.randrange(2):
            branches[-1] = (branches[-1][0], shapes.FAILING)
        return branches

    def _readable(self) -> list[Relation]:
        shown = [row.relation for _, row in sorted(self.tables.relations.items()) if row.shown and not row.dropped]
        return [one for one in shown if len(one.key) < 4]

    async def _actors(
        self, world: World, branches: Sequence[shapes.Branch], asked: Parallelism | None
    ) -> Sequence[int]:
        """Return how many actors each scan begins with; where none are asked for, those of its upstream."""
        if asked is None:
            async with world.stores.begin() as tx:
                return [await rescaling.actors_beside(tx, upstream) for upstream, _ in branches]
        scans = len(branches)
        return [
            resolved(asked, slots=self.slots, vnode_count=upstream.vnode_count, scans=scans) for upstream, _ in branches
        ]

    def _name(self, letter: str) -> str:
        """Return a new name, or one that has become free."""
        names = {row.relation.name: row.dropped for _, row in sorted(self.tables.relations.items())}
        free = [name for name, dropped in names.items() if dropped and name.startswith(letter)]
        return self.random.choice(free) if free and self.random.randrange(2) else f"{letter}{self.numbered}"

    def _one(self, kind: RelationKind) -> Relation | None:
        found = [
            row.relation
            for _, row in sorted(self.tables.relations.items())
            if row.relation.kind is kind
            and not row.dropped
            and (kind is not RelationKind.TABLE or self.tables.jobs[row.job].job.state is JobState.CREATED)
        ]
        return self.random.choice(found) if found else None

    def _creating(self) -> JobId | None:
        return self._view(*CREATING)

    def _view(self, *states: JobState) -> JobId | None:
        found = [
            job
            for job, row in sorted(self.tables.jobs.items())
            if row.job.state in states and row.job.kind is RelationKind.MATERIALIZED_VIEW
        ]
        return self.random.choice(found) if found else None

    def _parallelism(self) -> Parallelism:
        return self.random.choice((Adaptive(), Fixed(self.random.randint(1, self.vnode_count))))

    def _order(self, upstreams: list[RelationId]) -> tuple[tuple[RelationId, RelationId], ...]:
        distinct = list(dict.fromkeys(upstreams))
        if len(distinct) < 2 or not self.random.randrange(3):
            return ()
        self.random.shuffle(distinct)
        return tuple(pairwise(distinct))


_INSERT = 11


def _insert(statement: StatementId, relation: Relation, rows: list[tuple[int, int]]) -> InsertValues:
    return InsertValues(id=statement, relation=relation, columns=("k", "v"), source=written(rows))


def _statement(
    verb: int, statement: StatementId, relation: Relation, rows: list[tuple[int, int]], drawn: tuple[int, int, int]
) -> Statement:
    key, other, value = drawn
    one, some = f"k = {key}", f"v % 4 = {value % 4}"
    match verb:
        case 0 | 1:
            return Update(id=statement, relation=relation, assignments=(("v", str(value)),), predicate=one)
        case 2:
            return Update(id=statement, relation=relation, assignments=(("v", str(value)),), predicate=some)
        case 3 | 4:
            return Update(id=statement, relation=relation, assignments=(("k", str(other)),), predicate=one)
        case 5:
            return Update(id=statement, relation=relation, assignments=(("k", str(other)),), predicate=some)
        case 6:
            return Delete(id=statement, relation=relation, predicate=one)
        case 7:
            return Delete(id=statement, relation=relation, predicate=DIVISION if value == 0 else some)
        case _:
            return _insert(statement, relation, rows)


_WEIGHED: tuple[tuple[Callable[[Users], Call | None], int], ...] = (
    (Users.write, 40),
    (Users.load, 4),
    (Users.create, 18),
    (Users.pause, 3),
    (Users.resume, 4),
    (Users.flush, 3),
    (Users.throttle, 6),
    (Users.hold, 3),
    (Users.start, 2),
    (Users.rescale, 7),
    (Users.cancel, 3),
    (Users.drop, 3),
    (Users.recover, 4),
    (Users.pause_next, 1),
    (Users.read, 4),
)
_AMBUSHED: tuple[tuple[Callable[[Users, JobId], Call], int], ...] = (
    (Users.throttle_one, 3),
    (Users.hold_one, 2),
    (Users.start_one, 2),
    (Users.rescale_one, 4),
    (Users.cancel_one, 2),
    (Users.drop_one, 2),
    (lambda users, _: users.pause(), 3),
    (lambda users, _: users.resume(), 1),
    (lambda users, _: users.flush(), 1),
    (lambda users, _: users.recover(), 3),
)
_AMBUSHES = [action for action, _ in _AMBUSHED]
_AMBUSH_WEIGHTS = [weight for _, weight in _AMBUSHED]
_ACTIONS = [action for action, _ in _WEIGHED]
_WEIGHTS = [weight for _, weight in _WEIGHED]
