"""A table format in memory: the second implementation of `workers.state_store.port` and `service.ports.state_store`.

Its tables are in the test's process. Tasks in other processes, such as Spark's, reach them by a loopback connection.
The worker side sends all rows of a transaction in one request, which checks the fence, closes and inserts at once.
Requests run one by one. A test must call the service side only while no request runs.

It stores the columns that `writes_binary` accepts, and orders keys of the types that `tests.support.model` knows.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from multiprocessing.connection import Client, Listener
from threading import Thread
from types import TracebackType
from typing import Any, ClassVar, Self, cast
from uuid import UUID

import pyarrow as pa
from typing_extensions import override

from service.protocol.columns import ColumnType, TypeName
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, GraphId
from service.protocol.relation import Relation
from service.protocol.table_format import Capabilities
from service.protocol.vnodes import Runs, vnodes_of
from tests.support.fake_state_store import FakeFences, FakePins, FakeTables, StateStore, StoredTable, Writing
from tests.support.model import Half, Key, Version, VersionedTable
from workers.backfill.order import Position
from workers.backfill.positions import Block, PageSize
from workers.state_store.port import CLOSE, LIVE, OPERATION, VNODE, ArrowPage, VersionedStore, Written
from workers.state_store.wire import read_schema, writes_binary

_SECRET = b"of one machine's tests"
Address = tuple[str, int]
Changes = Sequence[tuple[int, pa.RecordBatch]]


class AnyKeyTable(StoredTable):
    """A table whose key may have any order. Its rows have one value per column, as a reader gets it."""

    def __init__(self, relation: Relation) -> None:
        assert writes_binary(relation), f"{relation.name} has a column that this format does not store"
        super().__init__(relation)

    @override
    def in_order(self, versions: Iterable[Version]) -> list[Version]:
        return VersionedTable.in_order(self, versions)

    @override
    def values(self, position: Position) -> Key:
        return VersionedTable.values(self, position)

    def version(self, row: dict[str, Any], epoch: int) -> Version:
        """Return the version that begins with a written row."""
        columns = self.relation.columns
        values = {column.name: _stored(row[column.name], column.type) for column in columns}
        key = tuple(values[part.name] for part in self.relation.key)
        return Version(row[VNODE], key, cast("Any", tuple(values.values())), epoch)

    def batch(self, relation: Relation, rows: Sequence[Version | Half]) -> tuple[pa.RecordBatch, ...]:
        """Return rows with the columns of `relation`, which may be some of the table's. No batch without rows."""
        if not rows:
            return ()
        schema, names = read_schema(relation), [column.name for column in self.relation.columns]
        places = [names.index(column.name) for column in relation.columns]
        columns = [[one.vnode for one in rows], *([one.row[place] for one in rows] for place in places)]
        arrays = [pa.array(values, wanted.type) for values, wanted in zip(columns, schema, strict=True)]
        return (pa.RecordBatch.from_arrays(arrays, schema=schema),)


def _stored(value: Any, kind: ColumnType) -> Any:
    match value:
        case Decimal():
            return f"{value:f}"
        case bytes() if kind.name is TypeName.UUID:
            return str(UUID(bytes=value))
        case _:
            return value


@dataclass(frozen=True, slots=True)
class MemoryStore(VersionedStore):
    """The worker side of the format."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    address: Address
    graph: GraphId
    generation: Generation

    @override
    def read_page(self, relation: Relation, block: Block, *, at: Epoch, size: PageSize) -> ArrowPage:
        return self._ask("page", relation, block, at, size)

    @override
    def has_rows(self, relation: Relation, count: int, *, at: Epoch) -> bool:
        return self._ask("has_rows", relation, count, at)

    @override
    def changed(self, relation: Relation, *, after: Epoch, upto: Epoch) -> bool:
        return self._ask("changed", relation, after, upto)

    @override
    def read_changes(
        self, relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield from self._ask("changes", relation, after, upto, runs)

    @override
    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        return self._ask("write", relation, epoch, self.graph, self.generation, list(rows))

    def _ask(self, method: str, *arguments: object) -> Any:
        with Client(self.address, authkey=_SECRET) as connection:
            connection.send((method, arguments))
            answer = connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class MemoryFormat:
    """Both sides of the format. Within its context a server connects them."""

    state: StateStore = field(default_factory=lambda: StateStore(table=AnyKeyTable))

    def __post_init__(self) -> None:
        self.tables, self.fences, self.pins = FakeTables(self.state), FakeFences(self.state), FakePins(self.state)
        self._listener = Listener(("127.0.0.1", 0), authkey=_SECRET)
        self.address = cast("Address", self._listener.address)
        self._serving = Thread(target=self._serve, name="memory format")

    def store(self, generation: Generation, graph: GraphId = DATABASE_GRAPH) -> MemoryStore:
        """Return the worker side for one generation."""
        return MemoryStore(self.address, graph, generation)

    def __enter__(self) -> Self:
        self._serving.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with Client(self.address, authkey=_SECRET) as connection:
            connection.send(None)
        self._serving.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            # A task may be cancelled during its request.
            with suppress(EOFError, ConnectionError), self._listener.accept() as connection:
                asked = connection.recv()
                if asked is None:
                    return
                connection.send(self._answer(*asked))

    def _answer(self, method: str, arguments: tuple[Any, ...]) -> object:
        try:
            return getattr(self, f"_{method}")(*arguments)
        except Exception as error:  # noqa: BLE001 - the client raises it
            return error

    def _table(self, relation: Relation) -> AnyKeyTable:
        return cast("AnyKeyTable", self.state.tables[relation.id])

    def _page(self, relation: Relation, block: Block, at: Epoch, size: PageSize) -> ArrowPage:
        table = self._table(relation)
        page = table.page(at, block, size)
        return ArrowPage(table.batch(relation, page.versions), page.rows, page.reached)

    def _has_rows(self, relation: Relation, count: int, at: Epoch) -> bool:
        return sum(one.start <= at < one.end for one in self._table(relation).versions) >= count

    def _changed(self, relation: Relation, after: Epoch, upto: Epoch) -> bool:
        ends = (end for one in self._table(relation).versions for end in (one.start, one.end))
        return any(after < end <= upto for end in ends)

    def _changes(self, relation: Relation, after: Epoch, upto: Epoch, runs: Runs) -> Changes:
        table, owned = self._table(relation), set(vnodes_of(runs))
        halves = [half for half in table.changes(after, upto) if half.vnode in owned]
        return [
            (operation, batch)
            for operation, new in ((CLOSE, False), (LIVE, True))
            for batch in table.batch(relation, [half for half in halves if half.new is new])
        ]

    def _write(
        self, relation: Relation, epoch: Epoch, graph: GraphId, generation: Generation, rows: list[pa.RecordBatch]
    ) -> Written:
        table, writing = self._table(relation), Writing(self.state, graph, generation)
        for row in (row for batch in rows for row in batch.to_pylist()):
            version = table.version(row, epoch)
            if row[OPERATION] == CLOSE:
                assert not writing.inserted, "a close came after a new version"
                writing.closed.append((table, version.key, epoch))
            else:
                writing.inserted.append((table, version))
        closed = writing.commit()
        return Written(len(writing.inserted), closed)
