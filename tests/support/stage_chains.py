"""Whole queries as chains of stages in a real store, beside plain tables that hold the same rows.

Users' statements change the plain tables. Their differences become an epoch of the versioned tables, the stages follow,
and the query itself over the plain tables says what the last stage has to hold.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, RelationId, Term
from service.protocol.plan import VnodePosition
from service.protocol.quoting import quoted
from service.protocol.relation import ALIVE, Relation, state_table
from service.protocol.stage import lookups
from service.protocol.vnodes import runs_of, vnode_postgres
from service.serving.lookups import create
from service.sql.parse import parse
from service.sql.queries.finishing import description, finished
from service.sql.queries.plan import plan_query
from service.sql.statements.tables import CreateTable, table_relation
from service.sql.statements.views import CreateMaterializedView
from service.sql.text.tree import Tree
from tests.support.stage_world import Engine, Made, state_of
from tests.support.state_store import Store
from tests.support.trees import check_trees
from workers.backfill.actors import ActorTask
from workers.backfill.stages import BoundStage, Window
from workers.engines.copiers import Copiers
from workers.engines.group_merge import GroupMerge
from workers.engines.port import StageTask
from workers.engines.stages import StageEngine
from workers.state_store.postgres import PostgresStore
from workers.state_store.statements import write

GENERATION, TERM = Generation(1), Term(3)
_VNODES: Final = re.compile(r" with \(vnode_count = \d+\)")
FEW: Final = 10
"""Pages of fewer rows: an epoch has only some of them."""


@dataclass
class Link:
    """One stage of a chain, and the positions of its driver's vnodes."""

    bound: BoundStage
    engine: StageEngine
    other: Engine | None
    """Reads the history and follows the changes in place of the store's engine."""
    positions: dict[int, VnodePosition] = field(default_factory=dict[int, VnodePosition])

    def run(
        self,
        epoch: int,
        windows: Mapping[RelationId, Window],
        changed: frozenset[RelationId],
        *,
        permits: int | None,
        page_rows: int = 1000,
    ) -> bool:
        """Run an epoch; return whether the target changed."""
        actor = ActorTask(
            runs=runs_of(range(self.bound.upstream.vnode_count)),
            positions=tuple(self.positions.values()),
            permits=permits,
        )
        task = StageTask(
            curr=Epoch(epoch),
            actors=(actor,),
            page_rows=page_rows,
            slice_seconds=30.0,
            windows=dict(windows),
            changed=changed,
            at={one: window.upto for one, window in windows.items()},
        )
        outcomes = (self.other or self.engine).run(task)
        assert outcomes is not None
        (outcome,) = outcomes
        self.positions |= {position.vnode: position for position in outcome.positions}
        return bool(outcome.inserted or outcome.closed)


@dataclass
class Chain:
    """A view: its query, its stages in order, and the relation of the last one."""

    query: str
    links: list[Link]
    view: Relation
    windowed: int


@dataclass
class Chains:
    """Tables by name, each both plain and versioned, and the views over them."""

    store: Store
    texts: Mapping[str, str]
    """The CREATE TABLE of each table."""
    views: Mapping[str, str] = field(default_factory=dict[str, str])
    """The query of each logical view."""
    seconds: int = 60
    """The timeout of a statement of the worker."""
    epoch: int = 10
    written: dict[RelationId, int] = field(default_factory=dict[RelationId, int])
    """The last epoch in which each table changed."""
    ids: "count[int]" = field(default_factory=lambda: count(100))
    types: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """The names of types, by oid and modifier."""
    copiers: Copiers = field(default_factory=lambda: Copiers("test", 1))

    def __post_init__(self) -> None:
        self.tables = tables_of(self.texts)

    async def create(self) -> None:
        """Create both forms of each table."""
        await self.store.fences.claim(TERM)
        await self.store.fences.fence(DATABASE_GRAPH, GENERATION, term=TERM)
        await self.store.run("create schema plain")
        for name, table in self.tables.items():
            await self.store.tables.create(table, term=TERM)
            text = re.sub(r" text(\[\])?", r' text\1 collate "C"', _VNODES.sub("", self.texts[name]))
            text = text.replace(f"table {name}", f"table plain.{name}")
            await self.store.run(text)
        for name, query in self.views.items():
            await self.store.run(f"set search_path = plain; create view {name} as {query}")

    async def change(self, *statements: str) -> None:
        """Run users' statements, and bring their differences into the next epoch."""
        self.epoch += 1
        texts = [self._overwriting(statement) for statement in statements]
        await self.store.run("; ".join(["set search_path = plain, public", *texts]))
        for name, table in self.tables.items():
            if not any(name in text for text in texts):
                continue
            columns = ", ".join(quoted(column.name) for column in table.columns)
            key = [(quoted(part.name), table.column(part.name).type) for part in table.key]
            # Rows are compared by text as well, in which 0 and -0 differ.
            live = f"select {columns}, row({columns})::text from {state_table(table.id)} where _to = {ALIVE}"
            plain = f"select {columns}, row({columns})::text from plain.{name}"
            rows = (
                f"select {columns}, true as _to from ({plain} except {live}) c"
                f" union all select {columns}, false from ({live} except {plain}) g"
            )
            given = f"select {vnode_postgres(key, table.vnode_count)} as _vnode, {columns}, _to from ({rows}) r"
            ((closed, made),) = await self.store.rows(
                f"with {write(table, given, Epoch(self.epoch))}"
                " select (select count(*) from closed), (select count(*) from made)"
            )
            if closed or made:
                self.written[table.id] = self.epoch

    def _overwriting(self, statement: str) -> str:
        """Return an INSERT that overwrites rows, as one of tidefill does."""
        if not statement.startswith("insert into "):
            return statement
        name = statement.split()[2]
        table = self.tables[name]
        key = [part.name for part in table.key]
        rest = [column.name for column in table.columns if column.name not in key]
        sets = ", ".join(f"{quoted(one)} = excluded.{quoted(one)}" for one in rest)
        does = f"update set {sets}" if sets else "nothing"
        return f"{statement} on conflict ({', '.join(map(quoted, key))}) do {does}"

    async def add(
        self,
        query: str,
        made: Made | None = None,
        *,
        page_rows: Callable[[], int] = lambda: 1000,
        between: Callable[[], Awaitable[None]] | None = None,
    ) -> Chain:
        """Plan a query, and read all history of its stages, in pages of so many rows.

        `made` makes the engine of each stage, in place of the store's. The tables may change `between` two epochs.
        Raises Invalid for a query that cannot be planned.
        """
        chain = await self.planned(query, made)
        await self._read_history(chain, page_rows, between)
        return chain

    async def planned(self, query: str, made: Made | None = None) -> Chain:
        """Plan a query, and create what its stages write. Raises Invalid for a query that cannot be planned."""
        trees = {name: _tree(text) for name, text in self.views.items()}
        by_name = dict(self.tables)
        names = [name for name, _ in await self.described(query)]
        known: dict[RelationId, Relation] = {table.id: table for table in self.tables.values()}
        targets: dict[int, RelationId] = {}
        links: list[Link] = []
        for draft in plan_query(_tree(query), by_name, trees, names):
            types = [kind for _, kind in await self.described(description(draft, known))]
            planned = finished(draft, types, known)
            check_trees(draft.trees)
            place = planned.relation.id
            if draft.target not in targets:
                targets[draft.target] = RelationId(next(self.ids))
                relation = planned.relation.model_copy(update={"id": targets[draft.target], "name": f"v{len(links)}"})
                relation = relation.model_copy(update={"name": f"v_{relation.id}"})
                known[place] = known[relation.id] = relation
                await self.store.tables.create(relation, term=TERM, sums=state_of(planned.stage))
            target = known[targets[draft.target]]
            stage = planned.stage.with_ids({one: known[one].id for one in known})
            read = {one.relation: known[one.relation] for one in stage.inputs}
            links.append(await self._link(BoundStage(stage, target, read), made))
        return Chain(query, links, links[-1].bound.target, self.epoch)

    @property
    def _writer_url(self) -> str:
        url = self.store.logins.writer_url
        return f"{url}{'&' if '?' in url else '?'}options=-cstatement_timeout%3D{self.seconds}s"

    async def _link(self, bound: BoundStage, made: Made | None) -> Link:
        for index in lookups(bound.stage, bound.relations):
            async with self.store.pool.connection() as conn:
                await conn.execute(create(index))
        versioned = PostgresStore(self._writer_url, DATABASE_GRAPH, GENERATION)
        engine = StageEngine(versioned, bound, self.copiers)
        return Link(bound, engine, None if made is None else made(versioned, bound))

    async def _read_history(
        self, chain: Chain, page_rows: Callable[[], int], between: Callable[[], Awaitable[None]] | None
    ) -> None:
        own = {link.bound.target.id for link in chain.links}
        for link in chain.links:
            done = False
            while not done:
                if between is not None:
                    await between()
                self.epoch += 1
                at = {
                    one: Window(Epoch(self.epoch), Epoch(self.epoch if one in own else chain.windowed))
                    for one in link.bound.relations
                }
                windows = {one: Window(window.upto, window.upto) for one, window in at.items()}
                rows = page_rows()
                link.run(self.epoch, windows, frozenset(), permits=4 * rows if rows < FEW else None, page_rows=rows)
                done = len(link.positions) == link.bound.upstream.vnode_count and all(
                    position.key is None for position in link.positions.values()
                )
            last = link is [one for one in chain.links if one.bound.target.id == link.bound.target.id][-1]
            if last and link.bound.stage.aggregate is not None:
                self.epoch += 1
                merge = GroupMerge(link.engine.store, link.bound, self.copiers)
                merge.run(Epoch(self.epoch), slice_seconds=60.0)
                assert merge.done

    def follow(self, chain: Chain) -> None:
        """Compute what changed since the last time."""
        upto = self.epoch
        self.epoch += 1
        changed_own: set[RelationId] = set()
        own = {link.bound.target.id for link in chain.links}
        for link in chain.links:
            windows = {
                one: Window(Epoch(self.epoch - 1), Epoch(self.epoch))
                if one in own
                else Window(Epoch(chain.windowed), Epoch(upto))
                for one in link.bound.relations
            }
            changed = frozenset(
                one
                for one in link.bound.relations
                if (one in changed_own if one in own else self.written.get(one, 0) > chain.windowed)
            )
            if changed and link.run(self.epoch, windows, changed, permits=0):
                changed_own.add(link.bound.target.id)
        chain.windowed = upto

    async def differs(
        self, chain: Chain, *, followed: bool = False
    ) -> tuple[Counter[tuple[object, ...]], Counter[tuple[object, ...]]]:
        """Return the rows that are missing in a view, and those that are too many, as texts.

        With `followed`, the view follows what changed before. Raises psycopg.Error if the query has no answer.
        """
        columns = ", ".join(quoted(column.name) for column in chain.view.visible)
        text = f"select tidefill_row::text from ({chain.query}) tidefill_row"
        want: Counter[tuple[object, ...]] = Counter(await self.rows(text))
        if followed:
            self.follow(chain)
        held = f"select row({columns})::text from {state_table(chain.view.id)} where _to = {ALIVE}"
        have = Counter(await self.store.rows(held))
        return want - have, have - want

    async def held(self, chain: Chain) -> list[tuple[str | None, ...]]:
        """Return the rows of a view, each column as its text."""
        columns = ", ".join(quoted(column.name) for column in chain.view.visible)
        return await self.rows(f"select {columns} from {state_table(chain.view.id)} where _to = {ALIVE}")

    async def rows(self, query: str) -> list[tuple[str | None, ...]]:
        """Return what a query over the plain tables answers, each column as its text."""
        # One message, so that the settings are those of its transaction alone.
        text = f"set local search_path = plain; set local statement_timeout = '30s'; {query}"
        async with self.store.pool.connection() as conn:
            cursor = await conn.execute(text.encode())
            while cursor.nextset():
                pass
            result = cursor.pgresult
            assert result is not None
            values = [
                [result.get_value(row, place) for place in range(result.nfields)] for row in range(result.ntuples)
            ]
            return [tuple(None if one is None else one.decode() for one in row) for row in values]

    async def twice(self, chain: Chain) -> list[str | None]:
        """Return the relations of a view that have two live rows of one key."""
        texts: list[str] = []
        for target in {link.bound.target.id: link.bound.target for link in chain.links}.values():
            key = ", ".join(quoted(part.name) for part in target.key)
            live = f"select from {state_table(target.id)} where _to = {ALIVE} group by {key} having count(*) > 1"
            texts.append(f"select {target.id} where exists ({live})")
        return [name for (name,) in await self.rows(" union all ".join(texts))]

    async def described(self, query: str) -> list[tuple[str, str]]:
        """Return the names and types of the columns of a query, if Postgres accepts it."""
        async with self.store.pool.connection() as conn:
            cursor = await conn.execute(f"set local search_path = plain; select * from ({query}) q limit 0".encode())
            cursor.nextset()
            result = cursor.pgresult
            assert result is not None
            types = [(result.ftype(place), result.fmod(place)) for place in range(result.nfields)]
            asked = ", ".join(f"format_type({oid}, {modifier})" for oid, modifier in types)
            if not self.types.keys() >= set(types):
                kinds = (await (await conn.execute(f"select {asked}".encode())).fetchall())[0]
                self.types.update(zip(types, map(str, kinds), strict=True))
            names = [(result.fname(place) or b"").decode() for place in range(result.nfields)]
            return [(name, self.types[kind]) for name, kind in zip(names, types, strict=True)]


async def filled(store: Store, tables: Mapping[str, str], rows: str, views: Mapping[str, str] | None = None) -> Chains:
    """Create the tables, with their rows, and logical views."""
    chains = Chains(store, tables, views or {})
    await chains.create()
    await store.run("select setseed(0.3)")
    await chains.change(*rows.strip().removesuffix(";").split(";\n"))
    return chains


def _tree(query: str) -> Tree:
    statement = parse(f"create materialized view v as {query}")
    assert isinstance(statement, CreateMaterializedView)
    return statement.query


def tables_of(texts: Mapping[str, str]) -> dict[str, Relation]:
    """Return the relations of CREATE TABLE statements, by name. A column `_row_id` is the hidden key of its table."""
    relations: dict[str, Relation] = {}
    for place, (name, text) in enumerate(texts.items(), 1):
        # A user may not call a column so, but the plain table has to have it.
        statement = parse(text.replace("_row_id bigint primary key, ", ""))
        assert isinstance(statement, CreateTable)
        relations[name] = table_relation(statement).model_copy(update={"id": RelationId(place)})
    return relations


def shuffled(table: Relation, random: Random) -> str:
    """Return a statement that changes some rows of a table: their values become those of other rows, or they move, come
    or go.
    """
    key = [part.name for part in table.key]
    rest = [column.name for column in table.columns if column.name not in key]
    every = ", ".join(quoted(column.name) for column in table.columns)
    some = f"(select {every} from {table.name} order by random() limit {random.randrange(1, 4)})"
    names = ", ".join(quoted(name) for name in key)
    last = quoted(key[-1])
    chosen = [quoted(name) for name in rest if random.random() < 0.5]
    new = ", ".join(f"{last} + {random.randrange(1, 40)}" if quoted(name) == last else quoted(name) for name in key)
    copied = ", ".join([new, *map(quoted, rest)])
    match random.randrange(4):
        case 0:
            return f"delete from {table.name} where ({names}) in (select {names} from {some} s)"
        case 1:
            columns = ", ".join([names, *map(quoted, rest)])
            # Each key once, because an INSERT may not overwrite a row of its own.
            return f"insert into {table.name} ({columns}) select {copied} from (select * from {some} s limit 1) s"
        case 2 if chosen:
            values = ", ".join(f"{name} = o.{name}" for name in chosen)
            return f"update {table.name} t set {values} from {some} o where t.{last} % 7 = {random.randrange(7)}"
        case _:
            free = f"not exists (select from {table.name} where {last} > 1000)"
            return (
                f"update {table.name} t set {last} = {last} + 1000 where {last} % 9 = {random.randrange(9)} and {free}"
            )
