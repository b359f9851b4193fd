"""An external Postgres with writers of our own, a worker that follows it, and the leader's side: driven by a seed.

The external tables are mirrored in plain data, commit by commit, each with the place in the log before it; so what
they held at any offset is known, also where a commit is in the log and not yet visible. After every committed epoch
the state store is compared with that, up to the positions (I1).
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any
from unittest.mock import MagicMock

import psycopg

import workers.cdc.external as adapter
from service.domain.parallelism import blocks
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.cdc import (
    SYSTEM_POSTGRES,
    CdcColumn,
    CdcScan,
    CdcSource,
    Published,
    SourceConnection,
    SourceReport,
    Split,
    Sweep,
    Unkeepable,
    published_of,
    published_postgres,
)
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.connector import Connector
from service.protocol.delta import NAME as DELTA
from service.protocol.ids import (
    DATABASE_GRAPH,
    ActorId,
    Epoch,
    FragmentId,
    Generation,
    JobId,
    RelationId,
    SourceId,
    Term,
    WorkerId,
)
from service.protocol.mutation import Add, Mutation, Pause, Reload, Resume, Throttle, Update
from service.protocol.plan import ActorPlan, FragmentKind, JobPlan, PositionState, SourceScanPlan, VnodePosition
from service.protocol.relation import Relation, RelationKind, state_table
from service.protocol.report import ActorReport, Collected
from service.protocol.vnodes import vnodes_of
from tests.support.state_store import Store
from workers.cdc import changes_log, connecting, pages
from workers.cdc.pages import Copied, PagesOutcome, PagesTask, copy_pages
from workers.graph import GraphExecutor
from workers.runners.port import FragmentRunner, Stores
from workers.runners.source_scan import SourceScans
from workers.state_store.dml import DmlStore
from workers.state_store.port import LIVE
from workers.state_store.postgres import PostgresStore

TERM = Term(1)
SOURCE = SourceId(77)
Row = tuple[Any, ...]
Rows = dict[Row, Row]
"""Rows by their key."""


@dataclass(frozen=True)
class Followed:
    """One external table and how it is followed. The key is the first `key` columns; the last is a long text."""

    number: int
    name: str
    columns: tuple[tuple[str, str], ...]
    key: int
    splits: tuple[Split, ...] = (Split(),)
    collation: str = ""
    identity: str = "default"
    timestamp: str | None = None
    partition: str = ""
    """What it is partitioned by, and by `parts`, names and bounds."""
    parts: tuple[tuple[str, str], ...] = ()
    there: tuple[tuple[str, str], ...] = ()
    """The types that columns have there, where they have others here."""
    unkeepable: Unkeepable = "fail"
    made: str = ""
    """The statement that creates it there, where it has more columns than are followed."""
    lake: bool = False
    """Whether its rows lie in a lake. The store has the log of what is not there yet, and a test carries it."""

    @property
    def relation(self) -> Relation:
        columns = [Column(name=name, type=ColumnType.parse(kind)) for name, kind in self.columns]
        stamped = [Column(name=self.timestamp, type=ColumnType.parse("timestamptz"))] if self.timestamp else []
        return Relation(
            id=RelationId(self.number),
            name=self.name,
            kind=RelationKind.TABLE,
            columns=(*(c.model_copy(update={"nullable": n >= self.key}) for n, c in enumerate(columns)), *stamped),
            key=tuple(KeyColumn(name=name) for name, _ in self.columns[: self.key]),
            vnode_count=6,
            lake=Connector(name=DELTA) if self.lake else None,
        )

    @property
    def fragment(self) -> FragmentId:
        return FragmentId(self.number * 10)

    @property
    def ddl(self) -> str:
        if self.made:
            return self.made
        there = dict(self.there)
        columns = ", ".join(
            f"{name} {there.get(name, kind)}{f' collate {self.collation}' if kind == 'text' and self.collation else ''}"
            for name, kind in self.columns
        )
        names = ", ".join(name for name, _ in self.columns[: self.key])
        by = f" partition by {self.partition}" if self.partition else ""
        return f"create table {self.name} ({columns}, primary key ({names})){by}"


@dataclass
class Writer:
    """One session with a transaction that stays open for as long as it likes."""

    connection: psycopg.Connection
    hangs: bool = False
    """Whether its commits wait for a standby."""
    effects: list[tuple[str, Any, Any]] = field(default_factory=list[tuple[str, Any, Any]])
    """(table, old key or None, new row or None); an old key of `...` is a TRUNCATE."""

    def begin(self) -> None:
        """Begin a transaction where there is none, so that a block within it is a subtransaction."""
        self.connection.execute("select 1")


class External:
    """The external database: its writers, and its tables as plain data."""

    def __init__(
        self,
        url: str,
        tables: Sequence[Followed],
        *,
        unseen: bool = False,
        publication: str | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self.unseen = unseen
        self.publication = publication or f"for table {', '.join(table.name for table in tables)}"
        self.url, self.tables = url, {table.name: table for table in tables}
        self.admin = psycopg.connect(url, autocommit=True, options="-c synchronous_commit=local")
        self.number = 0
        self.rows: dict[str, Rows] = {name: {} for name in self.tables}
        self.history: list[tuple[int, dict[str, Rows]]] = [(0, {name: {} for name in self.tables})]
        self.writers: list[Writer] = []
        self.hanging: list[tuple[Writer, threading.Thread]] = []
        self.prepared: dict[str, list[tuple[str, Any, Any]]] = {}
        """What those that are prepared did, by their names."""
        for statement in before:
            self.admin.execute(statement.encode())
        for table in tables:
            self.admin.execute(table.ddl.encode())
            for part, bound in table.parts:
                self.admin.execute(f"create table {part} partition of {table.name} {bound}".encode())
            for name in (table.name, *(part for part, _ in table.parts)):
                self.admin.execute(f"alter table {name} replica identity {table.identity}".encode())
            last = table.columns[-1][0]
            self.admin.execute(f"alter table {table.name} alter {last} set storage external".encode())
        self.types = {table.name: self.types_of(table.name) for table in tables}

    def open_slot(self) -> str:
        """Publication first, then the slot, which waits for every transaction that runs; return where it begins."""
        self.rest()
        via_root = "with (publish_via_partition_root = true)"
        self.admin.execute(f"create publication pub {self.publication} {via_root}".encode())
        found = self.admin.execute(
            "select lsn::text from pg_create_logical_replication_slot('slot', 'pgoutput')"
        ).fetchone()
        assert found is not None
        return str(found[0])

    def types_of(self, table: str) -> dict[str, str]:
        """The full types of a table's columns, as the service asks for them."""
        self.admin.execute("set search_path = pg_catalog")
        asked = (
            "select attname, format_type(atttypid, atttypmod) from pg_attribute"
            " where attrelid = %s::regclass and attnum > 0"
        )
        try:
            return {str(name): str(kind) for name, kind in self.admin.execute(asked, [f"public.{table}"])}
        finally:
            self.admin.execute("reset search_path")

    def lsn(self) -> int:
        found = self.admin.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert found is not None
        return int(found[0])

    def writer(self, *, hangs: bool = False) -> Writer:
        durable = "on" if hangs else "local"
        options = f"-c synchronous_commit={durable} -c lock_timeout=20ms"
        made = Writer(psycopg.connect(self.url, options=options), hangs)
        self.writers.append(made)
        return made

    def places(self) -> dict[str, Published]:
        """Return where the tables are in the publication."""
        names = list(self.tables)
        query = published_postgres(self.admin.info.server_version)
        self.admin.execute("set search_path = pg_catalog")
        with psycopg.RawCursor(self.admin) as cursor:
            found = cursor.execute(query.encode(), ["pub", ["public"] * len(names), names, []]).fetchall()
        system = self.admin.execute(SYSTEM_POSTGRES).fetchone()
        assert system is not None
        self.admin.execute("reset search_path")
        return {str(row[1]): published_of(row, system[0], {}) for row in found}

    def run(
        self,
        writer: Writer,
        statement: str,
        values: Sequence[Any],
        effect: Callable[[Row], Any],
        *,
        undone: bool = False,
    ) -> bool:
        """Run one statement in a subtransaction; what it did is told by the rows that it returns, unless it is undone
        to a savepoint.
        """
        writer.begin()
        try:
            with writer.connection.transaction(force_rollback=undone):
                rows = writer.connection.execute(statement.encode(), values).fetchall()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            return False
        writer.effects += [effect(row) for row in rows if not undone]
        return True

    def empty(self, writer: Writer, table: str) -> None:
        """TRUNCATE, where nobody is in the way."""
        writer.begin()
        try:
            with writer.connection.transaction():
                writer.connection.execute(f"truncate {table}".encode())
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            return
        writer.effects.append((table, ..., None))

    def commit(self, writer: Writer) -> None:
        before = self.lsn()
        writer.connection.commit()
        self._committed(writer, before)

    def commit_unseen(self, writer: Writer) -> None:
        """Commit so that it is in the log and nobody sees it: it waits for a standby that never comes."""
        before, pid = self.lsn(), writer.connection.info.backend_pid
        thread = threading.Thread(target=writer.connection.commit)
        thread.start()
        waits = "select wait_event = 'SyncRep' from pg_stat_activity where pid = %s"
        while self.admin.execute(waits, [pid]).fetchone() != (True,):
            thread.join(0.01)
        self._committed(writer, before)
        self.writers.remove(writer)
        self.hanging.append((writer, thread))

    def prepare(self, writer: Writer) -> str:
        """Prepare a writer's transaction; return its name."""
        self.number += 1
        name = f"prepared-{self.number}"
        writer.connection.execute(f"prepare transaction '{name}'".encode())
        self.prepared[name], writer.effects = writer.effects, []
        return name

    def finish(self, name: str, how: str = "commit") -> None:
        """Commit what was prepared, or roll it back."""
        before, effects = self.lsn(), self.prepared.pop(name)
        self.admin.execute(f"{how} prepared '{name}'".encode())
        if how == "commit":
            self._tell(effects, before)

    def show(self) -> None:
        """Let what waits become visible."""
        for writer, thread in self.hanging:
            self.admin.execute("select pg_cancel_backend(%s)", [writer.connection.info.backend_pid])
            thread.join()
            writer.connection.close()
        self.hanging = []

    def rest(self) -> None:
        """End every transaction, and let all be seen."""
        self.show()
        for name in list(self.prepared):
            self.finish(name)
        for writer in list(self.writers):
            if not writer.effects:
                # A subtransaction that was rolled back has given it an id, with which even nothing waits for a standby.
                self.roll_back(writer)
            elif writer.hangs:
                self.commit_unseen(writer)
            else:
                self.commit(writer)
        self.show()

    def roll_back(self, writer: Writer) -> None:
        writer.connection.rollback()
        writer.effects = []

    def _committed(self, writer: Writer, before: int) -> None:
        effects, writer.effects = writer.effects, []
        self._tell(effects, before)

    def _tell(self, effects: Sequence[tuple[str, Any, Any]], before: int) -> None:
        for table, old, row in effects:
            rows = self.rows[table]
            if old is ...:
                rows.clear()
            elif old is not None:
                rows.pop(old)
            if row is not None:
                rows[row[: self.tables[table].key]] = row
        if effects:
            self.history.append((before, {name: dict(rows) for name, rows in self.rows.items()}))

    def at(self, offset: int) -> dict[str, Rows]:
        """Return what the tables held after the last commit that ends at or before an offset."""
        return [rows for before, rows in self.history if before < offset or before == 0][-1]

    def change(self, random: Random) -> None:
        """Do something in some transaction, or end it."""
        if self.hanging and not random.randrange(9):
            self.show()
        if self.prepared and not random.randrange(6):
            self.finish(random.choice(list(self.prepared)), random.choice(("commit", "commit", "rollback")))
        if len(self.writers) < 3:
            self.writer(hangs=self.unseen and not random.randrange(3))
        writer = random.choice(self.writers)
        if writer.effects and not random.randrange(3):
            if not random.randrange(5):
                self.roll_back(writer)
            elif writer.hangs:
                self.commit_unseen(writer)
            elif len(self.prepared) < 2 and not random.randrange(5):
                self.prepare(writer)
            else:
                self.commit(writer)
            return
        self.statement(random, writer, random.choice(list(self.tables.values())))

    def statement(self, random: Random, writer: Writer, table: Followed) -> None:
        name, width = table.name, table.key
        names = [column for column, _ in table.columns]
        same = " and ".join(f"{column} = %s" for column in names[:width])
        known, undone = list(self.rows[name]), not random.randrange(9)
        key = random.choice(known) if known else self.key(random, table)
        verb = random.choice(
            ("insert", "insert", "insert", "update", "update", "long", "move", "move", "delete", "rest")
        )
        if verb == "rest":
            if random.randrange(6):
                return
            self.empty(writer, name)
        elif verb == "insert":
            row = (*self.key(random, table), random.randrange(100), _long(random))
            text = f"insert into {name} ({', '.join(names)}) values ({', '.join(['%s'] * len(names))}) returning *"
            self.run(writer, text, row, lambda made: (name, None, made), undone=undone)
        elif verb == "delete":
            self.run(
                writer, f"delete from {name} where {same} returning *", key, lambda _: (name, key, None), undone=undone
            )
        else:
            value: Sequence[Any] = [random.randrange(100)]
            assigned = f"{names[width]} = %s"
            if verb == "long":
                value, assigned = [_long(random)], f"{names[-1]} = %s"
            elif verb == "move":
                value = [*self.key(random, table), *value]
                assigned = ", ".join(f"{column} = %s" for column in names[: width + 1])
            text = f"update {name} set {assigned} where {same} returning *"
            self.run(writer, text, [*value, *key], lambda made: (name, key, made), undone=undone)

    @staticmethod
    def key(random: Random, table: Followed) -> Row:
        texts = ("", "a", "A", "b", "B", "é", "z", "%s", "x'\\y\"", "Z")
        domains = {"text": lambda: random.choice(texts), "bigint": lambda: random.randrange(-40, 80)}
        return tuple(domains[kind]() for _, kind in table.columns[: table.key])

    def close(self) -> None:
        self.show()
        for name in list(self.prepared):
            self.finish(name, "rollback")
        for writer in self.writers:
            writer.connection.close()
        for statement in ("select pg_drop_replication_slot('slot')", "drop publication pub"):
            self.admin.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue]
        self.admin.close()


def _short(rows: set[Row]) -> list[str]:
    return sorted(str(tuple(str(value)[:12] for value in row)) for row in rows)


def _long(random: Random) -> str | None:
    """Long enough to be kept apart, unless it is not."""
    return random.choice((None, "short", str(random.randrange(10)) * random.choice((2500, 9000))))


@dataclass
class LocalPages:
    """A `PagesJob` without Spark: the actors read one after the other, here."""

    spark: Any
    copied: Copied

    def run(self, task: PagesTask) -> list[PagesOutcome]:
        sent = PagesTask.model_validate_json(task.model_dump_json())
        return [copy_pages(self.copied, sent, index) for index in range(len(task.actors))]


@dataclass
class CdcWorld:
    """The leader's side: what is committed, and the worker that follows."""

    store: Store
    external: External
    actors: int
    spark: Any = field(default_factory=MagicMock)
    """A stand-in, unless pages are to be read by Spark."""
    offset: str = "0/0"
    undecided: tuple[int, ...] = ()
    stored: dict[FragmentId, dict[int, VnodePosition]] = field(
        default_factory=dict[FragmentId, dict[int, VnodePosition]]
    )
    keys: dict[RelationId, int] = field(default_factory=dict[RelationId, int])
    broken: dict[FragmentId, str] = field(default_factory=dict[FragmentId, str])
    waiting: str | None = None
    carried: dict[FragmentId, dict[Row, Row]] = field(default_factory=dict[FragmentId, dict[Row, Row]])
    """The tables in a lake: by key, as carried up to an epoch."""
    carried_upto: dict[FragmentId, int] = field(default_factory=dict[FragmentId, int])
    model: bool = True
    """Whether the plain data know of all that is written; otherwise a test compares by itself."""
    page_rows: int | None = 3
    """Of every page; None lets the worker find it out."""
    batch_rows: int = 4
    readable_after: int = 0
    places: dict[str, Published] = field(default_factory=dict[str, Published])
    """Where the tables were in the publication when they began to be followed."""
    reloads: dict[FragmentId, CdcScan] = field(default_factory=dict[FragmentId, CdcScan])
    """The scans of tables that are read again."""
    nulled: dict[FragmentId, int] = field(default_factory=dict[FragmentId, int])
    """How many values were stored as NULL."""
    paused: bool = False
    limit: int | None = 0
    committed: int = 1
    newest: int = 1
    generation: int = 0
    read: int = 0
    collected: Collected | None = None
    conninfo: str | None = None
    executor: GraphExecutor | None = None
    finished: set[FragmentId] = field(default_factory=set[FragmentId])

    async def prepare(self) -> None:
        await self.store.fences.claim(TERM)
        for table in self.external.tables.values():
            await self.store.tables.create(table.relation, term=TERM, logged=table.lake)
        self.offset = self.external.open_slot()
        self.places = self.external.places()
        await self.recover()

    async def recover(self) -> None:
        """Start the next generation from what is committed."""
        self.generation += 1
        await self.store.fences.fence(DATABASE_GRAPH, Generation(self.generation), term=TERM)
        relations = [table.relation.id for table in self.external.tables.values()]
        await self.store.tables.roll_back(relations, DATABASE_GRAPH, Epoch(self.committed), term=TERM)
        self.close()
        join = partial(SourceScans.join, self.spark, self._connection, str)
        self.executor = GraphExecutor(
            WorkerId(f"w-{self.generation}"), self.spark, self._connect, {FragmentKind.CDC_SCAN: join}
        )
        jobs = tuple(self.job(table) for table in self.external.tables.values())
        await self.commit(self.run(BarrierKind.INITIAL, Add(jobs=jobs, paused=self.paused)), None)

    def close(self) -> None:
        """End the worker's sessions, as its end does."""
        for runner in self._runners():
            runner.end()
        while connecting.kept:
            connecting.kept.popitem()[1].close()

    def _runners(self) -> Iterable[FragmentRunner]:
        return () if self.executor is None else self.executor.runners.values()

    async def epoch(self, mutation: Mutation | None = None, *, kill: bool = False, interval_ms: int = 1) -> None:
        collected = self.run(BarrierKind.CHECKPOINT, mutation, interval_ms=interval_ms)
        if kill:
            await self.recover()
        else:
            await self.commit(collected, mutation)

    def run(self, kind: BarrierKind, mutation: Mutation | None, *, interval_ms: int = 1) -> Collected:
        self.newest += 1
        for source in self._runners():
            for table in source.tables.values() if isinstance(source, SourceScans) else ():
                table.page_rows = self.page_rows or table.page_rows
        barrier = Barrier(
            graph=DATABASE_GRAPH,
            generation=Generation(self.generation),
            prev=Epoch(self.committed),
            curr=Epoch(self.newest),
            kind=kind,
            mutation=mutation,
            interval_ms=interval_ms,
        )
        assert self.executor is not None
        return self.executor.run(barrier)

    async def commit(self, collected: Collected, mutation: Mutation | None) -> None:
        self._acted(mutation)
        self.collected = collected
        read = sum(report.snapshot_rows for report in collected.of(ActorReport))
        assert not (self.paused and read), "I4: history was read while paused"
        assert not (self.limit == 0 and read), "I4: history was read at limit 0"
        self.read += read
        for report in collected.of(ActorReport):
            self.stored.setdefault(report.fragment, {}).update({at.vnode: at for at in report.positions})
            if report.finished:
                self.finished.add(report.fragment)
        for relation in collected.relations:
            self.keys[relation.relation] = self.keys.get(relation.relation, 0) + relation.key_count_delta
        self._told(collected.of(SourceReport))
        self.committed = collected.epoch
        await self.check()

    def _acted(self, mutation: Mutation | None) -> None:
        match mutation:
            case Pause() | Resume():
                self.paused = isinstance(mutation, Pause)
            case Throttle(fragments=limits):
                self.limit = next(iter(limits.values()))
            case Reload(fragments=scans):
                for one in scans:
                    self.broken.pop(one, None)
                    self.stored[one] = {}
                    self.finished.discard(one)
            case Update(fragments=fragments):
                self.actors = len(next(iter(fragments.values())))
            case _:
                pass

    def _told(self, reports: Iterable[SourceReport]) -> None:
        for source in reports:
            self.waiting = source.waiting
            self.offset, self.undecided = source.offset, source.undecided
            self.broken.update({table.fragment: table.broken for table in source.tables if table.broken is not None})
            names = {table.fragment: table.name for table in self.external.tables.values()}
            self.places |= {names[one.fragment]: one.published for one in source.tables if one.published is not None}
            for one in source.tables:
                if one.nulled is not None:
                    self.nulled[one.fragment] = one.nulled
                if one.sweep is not None:
                    self.reloads[one.fragment] = self.reloads[one.fragment].model_copy(update={"sweep": one.sweep})

    def job(self, table: Followed) -> JobPlan:
        stored = self.stored.get(table.fragment, {})
        actors = tuple(
            ActorPlan(
                id=ActorId(table.number * 100 + number),
                vnodes=runs,
                positions=tuple(stored[split] for split in vnodes_of(runs) if split in stored),
            )
            for number, runs in enumerate(blocks(len(table.splits), min(self.actors, len(table.splits))), start=1)
        )
        fragment = SourceScanPlan(
            id=table.fragment,
            actors=actors,
            cdc=self.scan(table),
            rate_limit=self.limit,
        )
        return JobPlan(id=JobId(table.number), relation=table.relation, fragments=(fragment,))

    def scan(self, table: Followed) -> CdcScan:
        source = CdcSource(
            id=SOURCE, name="pg", slot="slot", publication="pub", offset=self.offset, undecided=self.undecided
        )
        if table.fragment in self.reloads:
            now = {"source": source, "published": self.places[table.name], "broken": self.broken.get(table.fragment)}
            return self.reloads[table.fragment].model_copy(update=now)
        return CdcScan(
            source=source,
            external_schema="public",
            external_table=table.name,
            columns=self._columns(table),
            split_column=table.columns[0][0],
            splits=table.splits,
            readable_after=self.readable_after,
            batch_rows=self.batch_rows,
            timestamp=table.timestamp,
            unkeepable=table.unkeepable,
            nulled=self.nulled.get(table.fragment, 0),
            published=self.places[table.name],
            broken=self.broken.get(table.fragment),
        )

    def _columns(self, table: Followed) -> tuple[CdcColumn, ...]:
        types = self.external.types[table.name]
        return tuple(CdcColumn(name=name, external=name, type=types[name]) for name, _ in table.columns)

    def rescaled(self, actors: int) -> Update:
        plans = {
            table.fragment: tuple(
                ActorPlan(id=ActorId(table.number * 100 + number), vnodes=runs)
                for number, runs in enumerate(blocks(len(table.splits), min(actors, len(table.splits))), start=1)
            )
            for table in self.external.tables.values()
        }
        return Update(fragments=plans)

    def reload(self, table: Followed) -> Reload:
        """Begin the history of a table anew, as ALTER TABLE .. RELOAD does."""
        found = self.external.admin.execute("select pg_current_xact_id()::text::bigint").fetchone()
        assert found is not None
        place = self.external.places()[table.name]
        self.external.types[table.name] = self.external.types_of(table.name)
        new = {"published": place, "sweep": Sweep(), "reloaded_at": place.end, "readable_after": found[0]}
        new |= {"columns": self._columns(table)}
        self.places[table.name] = place
        self.reloads[table.fragment] = self.scan(table).model_copy(update={**new, "broken": None, "nulled": 0})
        scans, relations = {table.fragment: self.reloads[table.fragment]}, {table.fragment: table.relation}
        return Reload(fragments=scans, relations=relations)

    def throttled(self, limit: int | None) -> Throttle:
        return Throttle(fragments={table.fragment: limit for table in self.external.tables.values()})

    def _connect(self, barrier: Barrier) -> Stores:
        generation = barrier.generation
        store = PostgresStore(self.store.url, DATABASE_GRAPH, generation)
        return Stores(store, DmlStore(self.store.logins.writer_url, DATABASE_GRAPH, generation), store)

    def _connection(self, source: SourceId) -> SourceConnection:
        return SourceConnection(source=source, conninfo=self.conninfo or self.external.url)

    async def rows(self, table: Followed) -> list[tuple[Any, ...]]:
        """What is stored of a table at the committed epoch, in the order of its key."""
        names = ", ".join(column.name for column in table.relation.columns)
        at = f"_from <= {self.committed} and _to > {self.committed}"
        order = ", ".join(name for name, _ in table.columns[: table.key])
        return await self.store.rows(
            f"select {names} from {state_table(table.relation.id)} where {at} order by {order}"
        )

    async def check(self) -> None:
        """I1 at the committed epoch, for every table that is followed."""
        high, low = self.offset.split("/")
        held = self.external.at((int(high, 16) << 32) | int(low, 16))
        for table in self.external.tables.values():
            reloading = table.fragment in self.reloads and table.fragment not in self.finished
            if table.fragment in self.broken or reloading or not self.model:
                continue
            if table.lake and self.committed % 3 and table.fragment not in self.finished:
                continue  # it is carried later
            names = ", ".join(name for name, _ in table.columns)
            stored = f"select {names} from {state_table(table.relation.id)}"
            found = (
                await self.carry(table)
                if table.lake
                else await self.store.rows(f"{stored} where _from <= {self.committed} and _to > {self.committed}")
            )
            expected = set(self.backfilled(table, held[table.name]))
            extra, lacking = set(found) - expected, expected - set(found)
            differing = f"{_short(extra)}, not {_short(lacking)}"
            assert len(found) == len(expected) == len(expected - lacking), f"I1: {table.name}: {differing}"
            if table.lake:
                continue
            assert self.keys.get(table.relation.id, 0) == len(found), "the number of keys"
            empty = await self.store.rows(f"{stored} where _from >= _to or _from > {self.committed}")
            assert empty == [], "versions of no epoch"

    async def carry(self, table: Followed) -> list[Row]:
        """Carry what is committed of a table in a lake, as a carrier does, and return its rows."""
        relation, upto, whole = table.relation, Epoch(self.committed), ((0, 5),)
        after = Epoch(self.carried_upto.get(table.fragment, 0))
        rows = self.carried.setdefault(table.fragment, {})
        ((place,),) = await self.store.rows(changes_log.truncation_query(relation.id, after=after, upto=upto))
        if place is not None:
            rows.clear()
            assert isinstance(place, int)
            pages = await self.store.rows(changes_log.rows_since(relation, place, upto=upto, runs=whole))
            changes = []
        else:
            pages = await self.store.rows(changes_log.pages_query(relation, after=after, upto=upto, runs=whole))
            changes = await self.store.rows(changes_log.changes_query(relation, after=after, upto=upto, runs=whole))
        for _, _, *row in pages:
            key = tuple(row[: table.key])
            assert key not in rows, f"{key} is appended, and there already"
            rows[key] = tuple(row)
        for operation, _, *row in changes:
            key = tuple(row[: table.key])
            rows.pop(key, None)
            if operation == LIVE:
                rows[key] = tuple(row)
        await self.store.run(changes_log.trim_command(relation.id, upto))
        self.carried_upto[table.fragment] = upto
        return list(rows.values())

    def backfilled(self, table: Followed, rows: Rows) -> list[Row]:
        """Return the rows up to the positions, as the external database orders them."""
        kept: list[Row] = []
        stored = self.stored.get(table.fragment, {})
        for number, split in enumerate(table.splits):
            position = stored.get(number)
            if position is None:
                continue
            first = table.columns[0][1]
            names = [name for name, _ in table.columns[: table.key]]
            conditions = [f"{names[0]} >= '{split.left}'::{first}"] if split.left is not None else []
            conditions += [f"{names[0]} < '{split.right}'::{first}"] if split.right is not None else []
            values: list[Any] = []
            if position.state is PositionState.IN_PROGRESS:
                assert position.key is not None
                typed = ", ".join(f"%s::{kind}" for _, kind in table.columns[: table.key])
                conditions.append(f"({', '.join(names)}) <= ({typed})")
                values = list(position.key)
            kept += self._among(table, rows, " and ".join(conditions) or "true", values)
        return kept

    def _among(self, table: Followed, rows: Rows, condition: str, values: Sequence[Any]) -> Iterator[Row]:
        keys = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(table.key)]
        kinds = [kind for _, kind in table.columns[: table.key]]
        arrays = ", ".join(f"%s::{kind}[]" for kind in kinds)
        collated = ", ".join(
            f"u{n}{f' collate {table.collation}' if kind == 'text' and table.collation else ''} as {name}"
            for n, (name, kind) in enumerate(table.columns[: table.key])
        )
        places = ", ".join(f"u{n}" for n in range(table.key))
        names = ", ".join(name for name, _ in table.columns[: table.key])
        asked = f"select {names} from (select {collated} from unnest({arrays}) as u({places})) k where {condition}"
        found = self.external.admin.execute(asked.encode(), [*keys, *values])
        return iter([rows[key] for key in found])


@contextmanager
def interleaved(random: Random, external: External, monkeypatch: Any, rate: int) -> Generator[None]:
    """Let writers do something whenever the worker asks the external database anything."""
    asked = adapter.ask

    def ask(*arguments: Any) -> Any:
        for _ in range(random.randrange(rate)):
            external.change(random)
        return asked(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(connecting, "SETUP", (*connecting.SETUP, "set lock_timeout = '50ms'"))
        patch.setattr(adapter, "ask", ask)
        patch.setattr(pages, "ask", ask)
        yield
