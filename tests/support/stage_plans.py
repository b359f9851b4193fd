"""The plans by which Postgres ran the statements of stages for a change, and what is wrong with them."""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, cast

import psycopg

from service.protocol.ids import Epoch
from service.protocol.quoting import quoted
from service.protocol.relation import Relation
from workers.backfill.order import Position
from workers.backfill.positions import Block, PageSize, samples, share_of_page
from workers.backfill.stages import BoundStage
from workers.engines.operators import OperatorEngine
from workers.engines.stages import StageEngine
from workers.state_store.bounded_session import BoundedSession
from workers.state_store.connections import BOUNDS
from workers.state_store.postgres import PostgresStore
from workers.state_store.stage_writer import StageWriter
from workers.state_store.statements import bound_query

SMALL: Final = 1_000
"""A table of fewer rows may be read in whatever way."""
SHARE: Final = 0.05
"""A small change reads at most this share of a table, however many rows it joins in these tests."""
_EXPLAIN: Final = "explain (analyze, buffers, timing off, format json) "
_RANGE: Final = 17
"""The blocks of one range of the index on `_from`, and its own."""


@dataclass(frozen=True, slots=True)
class Access:
    """How a node of a plan read one table: all of its loops together.

    `rows` are those that it gave, `removed` those that it read in vain, and `blocks` those of the table and its index.
    """

    node: str
    table: str
    index: str | None
    loops: int
    rows: int
    removed: int
    blocks: int

    def fault(self, of_table: int) -> str | None:
        """Return what is wrong with it, given the number of rows of the table."""
        if of_table < SMALL:
            return None
        if self.node == "Seq Scan":
            return "a sequential scan"
        if self._finds_what_began:
            return None
        read = self.rows + self.removed
        if read > SHARE * of_table:
            return f"{read} of {of_table} rows read"
        if self.removed > 100 + 10 * (self.rows + self.loops):
            return f"{self.removed} rows read in vain"
        return "an index read as a whole" if self.blocks > 10 + 6 * (self.loops + read) else None

    @property
    def _finds_what_began(self) -> bool:
        """Whether it reads what an epoch began, once: whole ranges of blocks, in which the new versions are."""
        by_ranges = self.index is not None and self.index.endswith("_from") and self.loops == 1
        return by_ranges and self.blocks <= _RANGE * (self.rows + 1)


@dataclass
class ExplainedStore:
    """A store whose stages run their statements under EXPLAIN first. `plans` has the plan of each, in order."""

    store: PostgresStore
    altered: Callable[[str], str]
    plans: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @contextmanager
    def staging(
        self, bound: BoundStage, epoch: Epoch, *, allowed_seconds: float | None = None
    ) -> Generator[StageWriter]:
        """Yield a transaction of a stage."""
        with self.store.staging(bound, epoch, allowed_seconds=allowed_seconds) as writer:
            found = writer.part_of

            def part_of(relation: Relation, block: Block, at: Epoch, size: PageSize) -> tuple[Block, Position | None]:
                self._explain_bound(relation, block, at, size)
                return found(relation, block, at, size)

            writer.part_of = part_of
            explaining = _Explaining(writer.connection, self.altered, self.plans)
            writer.connection = cast("BoundedSession", explaining)
            yield writer

    def _explain_bound(self, relation: Relation, block: Block, at: Epoch, size: PageSize) -> None:
        """Explain the first query for the upper key of a page, which the store runs in a session of its own."""
        some = block if size.exact else next(samples(block))
        query = bound_query(relation, block, some, at=at, rows=share_of_page(size.rows, some, block))
        with self.store.transaction(BOUNDS, kept=False) as connection:
            _Explaining(connection, self.altered, self.plans).explain(query)


@dataclass
class _Explaining:
    """A connection that explains each statement but settings and DDL, undoes what it did, and then runs it."""

    connection: "psycopg.Connection[Any]"
    altered: Callable[[str], str]
    plans: list[dict[str, Any]]

    def execute(self, sql: str) -> "psycopg.Cursor[Any]":
        if not sql.startswith(("set ", "create ")):
            with self.connection.transaction(force_rollback=True):
                self.explain(sql)
        return self.connection.execute(sql.encode())

    def explain(self, sql: str) -> None:
        """Keep the plan by which a statement ran."""
        row = self.connection.execute(f"{_EXPLAIN}{self.altered(sql)}".encode()).fetchone()
        assert row is not None
        found = json.loads(row[0]) if isinstance(row[0], str) else row[0]
        self.plans.append(found[0]["Plan"])


def explained(engines: Iterable[StageEngine | OperatorEngine], altered: Callable[[str], str]) -> list[ExplainedStore]:
    """Have engines explain the statements of their epochs from now on, and return their stores in order."""
    stores: list[ExplainedStore] = []
    for engine in engines:
        assert isinstance(engine.store, PostgresStore)
        stores.append(ExplainedStore(engine.store, altered))
        engine.store = cast("Any", stores[-1])
    return stores


def faults(plans: list[dict[str, Any]], sizes: Mapping[str, int]) -> list[str]:
    """Return what is wrong with the accesses of plans. `sizes` are the numbers of rows of the tables."""
    found = ((one, one.fault(sizes[one.table])) for plan in plans for one in _accesses(plan) if one.table in sizes)
    return [f"{fault}: {one}" for one, fault in found if fault is not None]


def few_changes(table: Relation, numbers: "count[int]") -> Iterator[str]:
    """Yield statements that delete a row, add one, and change two: one gets the values of another, one has NULLs."""
    key, every = [quoted(part.name) for part in table.key], [quoted(column.name) for column in table.columns]
    order, rest = ", ".join(key), [name for name in every if name not in key]

    def row() -> str:
        return f"(select * from {table.name} order by {order} offset {next(numbers) * 17} limit 1)"

    yield f"delete from {table.name} where ({order}) in (select {order} from {row()} s)"
    new = [f"{name} + 1000000" if name == key[0] else name for name in every]
    yield f"insert into {table.name} ({', '.join(every)}) select {', '.join(new)} from {row()} s"
    values = [f"{name} = o.{name}" for name in rest]
    nulls = [
        f"{quoted(column.name)} = null" for column in table.columns if column.nullable and quoted(column.name) in rest
    ]
    for sets in filter(None, (values, nulls)):
        same = " and ".join(f"t.{name} = i.{name}" for name in key)
        yield f"update {table.name} t set {', '.join(sets)} from {row()} o, {row()} i where {same}"


def _accesses(plan: dict[str, Any]) -> Iterator[Access]:
    inner = plan.get("Plans", [])
    if "Relation Name" in plan and plan["Node Type"] != "ModifyTable":
        loops = plan["Actual Loops"]
        removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
        nested = sum(_blocks(one) for one in inner if one["Parent Relationship"] == "SubPlan")
        yield Access(
            node=plan["Node Type"],
            table=plan["Relation Name"],
            index=next(_indexes(plan), None),
            loops=loops,
            rows=round(plan["Actual Rows"] * loops),
            removed=round(removed * loops),
            blocks=_blocks(plan) - nested,
        )
    for one in inner:
        yield from _accesses(one)


def _indexes(plan: dict[str, Any]) -> Iterator[str]:
    if "Index Name" in plan:
        yield plan["Index Name"]
    for one in plan.get("Plans", []):
        yield from _indexes(one)


def _blocks(plan: dict[str, Any]) -> int:
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
