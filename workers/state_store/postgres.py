"""Versioned tables on Postgres, as tasks read and write them (the port is `workers.state_store.port`). Next:
`workers.state_store.statements`.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from service.protocol.ids import Epoch, Generation, GraphId, RequestId
from service.protocol.quoting import quoted
from service.protocol.relation import Relation, state_table
from service.protocol.table_format import POSTGRES
from service.protocol.vnodes import Runs
from workers.backfill.order import Position, key_of
from workers.backfill.positions import Block, PageSize, Span, alike, samples, share_of_page
from workers.backfill.stages import BoundStage
from workers.state_store import statements
from workers.state_store.bounded_session import BoundedSession
from workers.state_store.connections import (
    BOUNDS,
    BY_KEY,
    CHANGES,
    PAGES,
    STAGING,
    WRITING,
    adbc_connection,
    application_name,
    psycopg_connection,
    question_name,
)
from workers.state_store.port import CLOSE, LIVE, VNODE, ArrowPage, Written
from workers.state_store.stage_writer import StageWriter
from workers.state_store.wire import copy_csv, is_close, key_text, read_schema, writes_binary

BATCH_BYTES: Final = 1 << 18
"""Approximate size of ADBC's batches. It is small, so that few rows are in flight when a slice ends."""


@dataclass(frozen=True, slots=True)
class PostgresStore:
    """The state store, for one generation of a graph. A small value that travels to every task.

    With `question` it only reads, to answer that request. Its sessions belong to no generation, so no recovery ends
    them. The changes of a stage may take `stage_timeout_ms` in an epoch; 0 is no limit.
    """

    capabilities: ClassVar = POSTGRES
    url: str = field(repr=False)
    graph: GraphId
    generation: Generation
    question: RequestId | None = None
    stage_timeout_ms: int = 0

    def read_page(self, relation: Relation, block: Block, *, at: Epoch, size: PageSize) -> ArrowPage:
        """Read a page of a block as of epoch `at`."""
        part, upto = self._part(relation, block, at, size)
        query = statements.page_query(relation, part, upto, at=at)
        schema = read_schema(relation)
        with adbc_connection(self.url, self._name, PAGES, autocommit=True) as connection:
            batches = tuple(_read(connection, query, schema))
        return ArrowPage(batches, _counted(batches), {span.vnode: upto for span in part})

    def _part(self, relation: Relation, block: Block, at: Epoch, size: PageSize) -> tuple[Block, Position | None]:
        """Return the part of a block that a page reads, and its upper key (None: to the end)."""
        with adbc_connection(self.url, self._name, BOUNDS, autocommit=True) as connection:
            for some in (block,) if size.exact else samples(block):
                rows = share_of_page(size.rows, some, block)
                told = _fetch(connection, statements.bound_query(relation, block, some, at=at, rows=rows))
                if told.num_rows:
                    return _bound(relation, block, told)
        return block, None

    @contextmanager
    def staging(
        self, bound: BoundStage, epoch: Epoch, *, allowed_seconds: float | None = None
    ) -> Generator[StageWriter]:
        """Yield a transaction of a stage that writes at `epoch`. When the context ends, fence and commit."""
        limit = self.stage_timeout_ms
        allowed = limit if allowed_seconds is None else max(1, round(allowed_seconds * 1000))
        with self.transaction(STAGING) as connection:
            yield StageWriter(connection, bound, epoch, self._part, limit_ms=limit, timeout_ms=allowed)

    def has_rows(self, relation: Relation, count: int, *, at: Epoch) -> bool:
        """Whether a relation has so many rows as of epoch `at`."""
        with adbc_connection(self.url, self._name, (), autocommit=True) as connection:
            return _select(connection, statements.some_rows(relation, count, at=at)) >= count

    def changed(self, relation: Relation, *, after: Epoch, upto: Epoch) -> bool:
        """Whether any version began or ended in `(after, upto]`."""
        with adbc_connection(self.url, self._name, CHANGES, autocommit=True) as connection:
            return bool(_select(connection, statements.changed(relation, after=after, upto=upto)))

    def read_changes(
        self, relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the net changes in `(after, upto]`: old versions first, then new ones."""
        old = statements.old_versions(relation, after=after, upto=upto, runs=runs)
        new = statements.new_versions(relation, after=after, upto=upto, runs=runs)
        schema = read_schema(relation)
        with adbc_connection(self.url, self._name, CHANGES, autocommit=True) as connection:
            for operation, query in ((CLOSE, old), (LIVE, new)):
                for batch in _read(connection, query, schema):
                    yield operation, batch

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """Write rows at `epoch`: closes first, then new versions as they arrive. Fence and commit."""
        closes, rest = _split(iter(rows))
        first = next(rest, None)
        if first is None and not closes:
            return Written(0, 0)
        rest = iter(()) if first is None else _chain(first, rest)
        if writes_binary(relation):
            return self._write_binary(relation, epoch, closes, rest)
        return self._write_csv(relation, epoch, closes, rest)

    def _write_binary(
        self, relation: Relation, epoch: Epoch, closes: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]
    ) -> Written:
        table = state_table(relation.id).split(".")
        with adbc_connection(self.url, self._name, WRITING, autocommit=False) as connection:
            closed = self._close_binary(connection, relation, epoch, closes)
            incoming = _Counted(_stored(relation, epoch, rest))
            first = next(incoming, None)
            if first is not None:
                reader = pa.RecordBatchReader.from_batches(first.schema, _chain(first, incoming))
                with connection.cursor() as cursor:
                    cursor.adbc_ingest(table[1], reader, mode="append", db_schema_name=table[0])
            _select(connection, self._hold)
            connection.commit()
        return Written(incoming.rows, closed)

    def _close_binary(self, connection: Any, relation: Relation, epoch: Epoch, closes: list[pa.RecordBatch]) -> int:
        if not closes:
            return 0
        keys = _keys(relation, closes)
        for statement in (*BY_KEY, _closing_table(relation)):
            _execute(connection, statement)
        with connection.cursor() as cursor:
            cursor.adbc_ingest("closing", keys, mode="append", temporary=True)
        counted = "with closed as ({} returning 1) select count(*) from closed"
        commands = statements.close(relation, "closing", epoch)
        return sum(int(_select(connection, counted.format(command))) for command in commands)

    def _write_csv(
        self, relation: Relation, epoch: Epoch, closes: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]
    ) -> Written:
        with self.transaction(WRITING) as connection, connection.cursor() as cursor:
            closed = 0
            if closes:
                cursor.execute(_sql(_closing_table(relation)))
                copy_csv(cursor, "closing", [_keys(relation, closes)])
                closed = _close(cursor, relation, epoch, BY_KEY)
            incoming = _Counted(_stored(relation, epoch, rest))
            copy_csv(cursor, state_table(relation.id), incoming)
        return Written(incoming.rows, closed)

    def read_sql(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, which reads only, in a schema of wire types."""
        with adbc_connection(self.url, self._name, CHANGES, autocommit=True) as connection:
            yield from _read(connection, query, schema)

    @contextmanager
    def transaction(self, setup: Sequence[str], *, kept: bool = True) -> Generator[BoundedSession]:
        """Yield a session in a transaction. When the context ends, fence and commit it, or roll back unless `kept`."""
        with (
            psycopg_connection(self.url, self._name, setup) as connection,
            connection.transaction(force_rollback=not kept),
        ):
            yield connection
            if kept:
                connection.execute(_sql(self._hold))

    @property
    def _name(self) -> str:
        if self.question is not None:
            return question_name(self.graph, self.question)
        return application_name(self.graph, self.generation)

    @property
    def _hold(self) -> str:
        """The last statement of every writing transaction. It raises when the generation is over (I7)."""
        assert self.question is None, "a question writes nothing"
        return hold_generation(self.graph, self.generation)


def hold_generation(graph: GraphId, generation: Generation) -> str:
    """Return the statement that fences a writing transaction. It comes last, because it holds a row lock: a long COPY
    before it blocks no recovery.
    """
    return f"select state.hold_generation({graph}, {generation})::int"


class _Counted(Iterator[pa.RecordBatch]):
    """Counts the rows that pass."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches, self.rows = batches, 0

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.rows += batch.num_rows
        return batch


def _read(connection: Any, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": BATCH_BYTES})
        cursor.execute(query)
        for batch in cursor.fetch_record_batch():
            if batch.num_rows:
                yield batch if batch.schema.equals(schema) else _as(batch, schema)


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the same columns with the declared names and types."""
    return pa.RecordBatch.from_arrays(
        [column.cast(wanted.type) for column, wanted in zip(batch.columns, schema, strict=True)], schema=schema
    )


def _bound(relation: Relation, block: Block, told: pa.Table) -> tuple[Block, Position]:
    """Return the part of the block before a page's upper key, and this key, from the result of `bound_query`."""
    key = key_of(relation)
    values = [column[0].as_py() for column in told.columns]
    upto = tuple(key_text(value, part.type) for part, value in zip(key, values[: len(key)], strict=True))
    standing = zip(alike(block).values(), values[len(key) :], strict=True)
    part: list[Span] = [span for spans, passed in standing if passed for span in spans]
    return part, upto


def _counted(batches: tuple[pa.RecordBatch, ...]) -> dict[int, int]:
    """Return the number of rows by vnode."""
    rows: dict[int, int] = {}
    for batch in batches:
        counts: Any = pc.value_counts(batch.column(0))  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
        for counted in counts.to_pylist():
            rows[counted["values"]] = rows.get(counted["values"], 0) + counted["counts"]
    return rows


def _split(rows: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
    """Return the closes as a list and the other rows as a stream. Closes come first, and are at most one epoch's
    changes.
    """
    closes: list[pa.RecordBatch] = []
    for batch in rows:
        closing = is_close(batch)
        count = closing.true_count
        if count:
            closes.append(batch.filter(closing))
        if count < batch.num_rows:
            return closes, _chain(batch.filter(pc.invert(closing)) if count else batch, rows)
    return closes, iter(())


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _stored(relation: Relation, epoch: Epoch, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches as the table stores them: without the operation, with the epoch."""
    names = statements.stored_columns(relation)
    for batch in rows:
        assert not pc.any(is_close(batch)).as_py(), "a close came after a new version"
        columns = [batch.column(name) for name in names[:-1]]
        made = pa.repeat(pa.scalar(epoch, pa.int64()), batch.num_rows)
        yield pa.RecordBatch.from_arrays([*columns, made], names=names)


def _keys(relation: Relation, closes: list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(closes).select([VNODE, *(part.name for part in relation.key)])


def _closing_table(relation: Relation) -> str:
    columns = ", ".join(["_vnode", *(quoted(part.name) for part in relation.key)])
    return f"create temp table closing on commit drop as select {columns} from {state_table(relation.id)} with no data"


def _close(cursor: Any, relation: Relation, epoch: Epoch, planned: Sequence[str]) -> int:
    """End the live versions at the keys of the table `closing`; return how many."""
    for setting in planned:
        cursor.execute(_sql(setting))
    return sum(cursor.execute(_sql(command)).rowcount for command in statements.close(relation, "closing", epoch))


def _execute(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
        cursor.execute(sql)


def _select(connection: Any, sql: str) -> Any:
    return _fetch(connection, sql).column(0)[0].as_py()


def _fetch(connection: Any, sql: str) -> pa.Table:
    """Run a query that COPY cannot run, such as a statement that changes rows and returns some."""
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
        cursor.execute(sql)
        return cursor.fetch_arrow_table()


def _sql(text: str) -> Any:
    """Cast for psycopg, which wants literal strings. `statements` prints the text from quoted identifiers."""
    return text
