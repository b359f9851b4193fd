"""Folders of Parquet files that are read in place: which files are taken and when, and their rows at each epoch."""

import queue
import shutil
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest
from typing_extensions import override

from service.protocol.columns import Column, ColumnType
from service.protocol.delta import DeltaPlace
from service.protocol.file_source import Folder, folder_of
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation
from service.protocol.relation import Relation, kept_of
from tests.support.drops import VNODES, drop, relation_of, rows, touch
from tests.support.lakes import SECRET, bucket, object_store
from tests.support.memory_format import MemoryFormat
from tests.support.table_formats import GENERATION, TERM
from workers.backfill.positions import Positions, pages
from workers.connectors import folder_watch, parquet_rows
from workers.connectors.delta_files import Files, Stamp
from workers.connectors.folder_files import UnfinishedFileError, footer_of, listed, takes
from workers.connectors.folder_watch import FolderWatch, describe
from workers.connectors.following import FolderFollower, Step
from workers.connectors.in_place import PlacedStore, folder_in
from workers.connectors.port import RefusedRowError, RefusedTableError
from workers.connectors.watching import LONG_SECONDS, FirstLooks, Watching
from workers.state_store.port import LIVE, CopyingStore

Row = tuple[Any, ...]
NEVER, FIRST, LAST = Epoch(0), Epoch(10), Epoch(99)


@dataclass
class Followed:
    """A folder that is followed from epoch to epoch, with a state store in memory."""

    relation: Relation
    memory: MemoryFormat
    generation: Generation = GENERATION
    known: str | None = None
    committed: Epoch = NEVER
    follower: FolderFollower | None = None

    @property
    def store(self) -> PlacedStore:
        return PlacedStore(cast("CopyingStore", self.memory.store(self.generation)))

    def step(self, epoch: Epoch, *, commit: bool = True) -> Step | None:
        """Run an epoch."""
        if self.follower is None:
            self.follower = FolderFollower(self.relation)
        watch = self.follower.watching
        if watch is not None:
            watch.try_to_look()
        step = self.follower.step(self.store, self.committed, self.known)
        if step is not None and commit:
            self.store.write(kept_of(self.relation), epoch, step.kept)
            self.known, self.committed = step.position, epoch
        return step

    def recover(self) -> None:
        """Begin another generation, which knows what is committed."""
        self.end()
        self.follower = None

    def end(self) -> None:
        if self.follower is not None and self.follower.watching is not None:
            self.follower.watching.end()

    def rows(self, at: Epoch, size: int = 1000, permits: int | None = None) -> list[Row]:
        """Return all rows of an epoch, read in pages. With `permits` each call reads so many, as with a limit."""
        positions, found = Positions(((0, VNODES - 1),), block_vnodes=4), list[Row]()
        while not positions.completed:
            before = positions.rows
            for page in pages(
                positions,
                lambda block, wanted: self.store.read_page(self.relation, block, at=at, size=wanted),
                page_rows=lambda: size,
                permits=permits,
                more_time=lambda: True,
            ):
                found += [row for batch in page.batches for row in self._values(batch)]
            assert permits is None or positions.rows - before <= permits
        assert positions.rows == len(found)
        return sorted(found, key=repr)

    def came(self, after: Epoch, upto: Epoch) -> list[Row]:
        """Return the rows that came between two epochs. None has gone."""
        found = list[Row]()
        for operation, batch in self.store.read_changes(self.relation, after=after, upto=upto, runs=((0, 7),)):
            assert operation == LIVE
            found += self._values(batch)
        assert not list(self.store.read_changes(self.relation, after=after, upto=upto, runs=((1, 7),)))
        return sorted(found, key=repr)

    def _values(self, batch: pa.RecordBatch) -> list[Row]:
        names = [column.name for column in self.relation.columns]
        return [tuple(row[name] for name in names) for row in batch.to_pylist()]


def look_once(watch: Watching, *, first: bool = False) -> None:
    """Look in place of a thread, if somebody waits for it."""
    if first:
        watch.try_to_look()


@pytest.fixture(autouse=True)
def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderWatch, "start", look_once)


@asynccontextmanager
async def followed(options: dict[str, str]) -> AsyncGenerator[Followed]:
    with MemoryFormat() as memory:
        one = Followed(relation_of(options), memory)
        await memory.fences.claim(TERM)
        await memory.tables.create(kept_of(one.relation), term=TERM)
        await memory.fences.fence(DATABASE_GRAPH, one.generation, term=TERM)
        try:
            yield one
        finally:
            one.end()


def wanted(*tables: pa.Table) -> list[Row]:
    """Return the rows of some tables."""
    return sorted((tuple(row.values()) for table in tables for row in table.to_pylist()), key=repr)


async def test_i3_each_epoch_has_the_files_that_were_known_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_rows, "PIECE_ROWS", 7)
    some = [rows(first, 20, city) for first, city in ((1, "Oslo"), (100, "Bergen"), (200, "Bodø"), (300, "Oslo"))]
    drop(tmp_path / "b.parquet", some[0], group_rows=6)
    async with followed({"location": str(tmp_path)}) as table:
        step = table.step(FIRST)
        assert step is not None
        assert (step.position, step.inserted, step.ended) == ("1", 20, 0)
        assert table.step(Epoch(15)) is None
        drop(tmp_path / "a.parquet", some[1], group_rows=3)
        drop(tmp_path / "c/d.parquet", some[2])
        # Of an epoch that is never committed nothing is left: the next generation finds the files again.
        assert table.step(Epoch(20), commit=False) is not None
        table.recover()
        # It begins to look, and finds them one epoch later.
        assert table.step(Epoch(25)) is None
        step = table.step(at := Epoch(30))
        assert step is not None
        assert (step.position, step.inserted) == ("3", 40)
        drop(tmp_path / "0.parquet", some[3])
        table.step(Epoch(40))
        for epoch, tables in ((FIRST, some[:1]), (Epoch(15), some[:1]), (at, some[:3]), (Epoch(40), some)):
            assert table.rows(epoch) == wanted(*tables)
            assert table.rows(epoch, 3) == wanted(*tables)
            assert table.rows(epoch, 5, permits=7) == wanted(*tables)
        assert table.came(Epoch(0), FIRST) == wanted(some[0])
        assert table.came(FIRST, at) == wanted(*some[1:3])
        assert table.came(FIRST, Epoch(40)) == wanted(*some[1:])
        assert table.came(Epoch(40), LAST) == []
        assert table.store.changed(table.relation, after=FIRST, upto=at)
        assert not table.store.changed(table.relation, after=Epoch(40), upto=LAST)


@pytest.mark.parametrize("case", ["gone", "changed", "away", "unmounted"])
async def test_i5_a_file_that_is_not_there_any_more_is_not_read_as_another(tmp_path: Path, case: str) -> None:
    at = tmp_path / "drop"
    for name in ("a", "b"):
        drop(at / f"{name}.parquet", rows(ord(name) * 100, 5))
    async with followed({"location": str(at)}) as table:
        table.step(FIRST)
        error, why = {
            "gone": (RefusedTableError, 'file "a.parquet" is gone, and was still to be read'),
            "changed": (RefusedTableError, 'file "a.parquet" has changed since it was first read'),
            "away": (OSError, "No such file or directory"),
            "unmounted": (OSError, "none of its files is there"),
        }[case]
        match case:
            case "gone":
                (at / "a.parquet").unlink()
            case "changed":
                drop(at / "a.parquet", rows(900, 5))
            case "away":
                at.rename(tmp_path / "away")
            case _:
                shutil.rmtree(at)
                at.mkdir()
                (at / "_SUCCESS").touch()
        for read in (lambda: table.rows(FIRST), lambda: table.came(Epoch(0), FIRST)):
            with pytest.raises(error, match=why):
                read()
        if error is OSError:
            return
        with pytest.raises(RefusedTableError, match=r'file "a\.parquet"'):
            table.step(Epoch(20))


async def test_a_folder_in_hives_style_has_its_partitions_as_texts(tmp_path: Path) -> None:
    part = rows(1, 3).drop_columns(["amount"])
    drop(tmp_path / "day=2026-01-01/where=a%2Fb/a.parquet", part)
    drop(tmp_path / "day=__HIVE_DEFAULT_PARTITION__/b.parquet", rows(4, 1).drop_columns(["amount"]))
    async with followed({"location": str(tmp_path)}) as table:
        kinds = {column.name: str(column.type) for column in table.relation.columns}
        assert kinds == {"day": "text", "where": "text", "id": "bigint", "city": "text"}
        table.step(FIRST)
        found = {row[2]: row[:2] for row in table.rows(FIRST)}
    assert found == {1: ("2026-01-01", "a/b"), 2: ("2026-01-01", "a/b"), 3: ("2026-01-01", "a/b"), 4: (None, None)}


async def test_columns_that_a_file_lacks_are_null_but_for_the_key(tmp_path: Path) -> None:
    drop(tmp_path / "a.parquet", rows(1, 2))
    drop(tmp_path / "b.parquet", rows(3, 1).drop_columns(["city"]))
    async with followed({"location": str(tmp_path)}) as table:
        table.step(FIRST)
        assert [row[1] for row in table.rows(FIRST) if row[0] == 3] == [None]
        drop(tmp_path / "c.parquet", pa.table({"id": pa.array([None], pa.int64())}))
        table.step(Epoch(20))
        with pytest.raises(RefusedRowError, match=r'column "id" of the primary key is NULL in file c\.parquet'):
            table.came(FIRST, Epoch(20))


async def test_an_empty_folder_is_a_table_of_the_named_columns(tmp_path: Path) -> None:
    named = [Column(name=name, type=ColumnType.parse(kind)) for name, kind in (("id", "bigint"), ("city", "text"))]
    relation = relation_of({"location": str(tmp_path)}, named)
    assert [(one.name, one.nullable) for one in relation.columns] == [("id", False), ("city", True)]
    watch = FolderWatch(folder_in(relation).place, relation, folder_in(relation), {})
    assert look(watch) == []
    assert watch.waiting is None
    drop(tmp_path / "a.parquet", rows(1, 2))
    assert look(watch) == ["a.parquet"]


async def test_a_folder_in_an_object_store_is_read_as_one_of_files() -> None:
    with object_store() as address:
        lake = bucket(address)
        at = {**lake.options, "location": f"{lake.location}/drop"}
        files = Files.of(folder_of(at).place)

        def put(name: str, table: pa.Table) -> None:
            stream = pa.BufferOutputStream()
            pq.write_table(table, stream)
            files.put(name, stream.getvalue().to_pybytes())

        put("a.parquet", rows(1, 5))
        put("_b.parquet", rows(1, 5))
        async with followed(at) as table:
            table.step(FIRST)
            put("day=1/c.parquet", rows(6, 5))
            while table.known != "2":
                table.step(Epoch(20))
            assert table.rows(FIRST) == wanted(rows(1, 5))
            assert table.came(FIRST, Epoch(20)) == wanted(rows(6, 5))
            files.remove("a.parquet")
            with pytest.raises(RefusedTableError, match=r"file \"a\.parquet\" is gone"):
                table.rows(FIRST)
        assert SECRET not in repr(table.relation)


@pytest.mark.parametrize(
    ("pattern", "path", "taken"),
    [
        ("*.parquet", "a.parquet", True),
        ("*.parquet", "day=1/a.parquet", True),
        ("*.parquet", "a.parquet.tmp", False),
        ("*.parquet", "_SUCCESS.parquet", False),
        ("*.parquet", ".a.parquet", False),
        ("*.parquet", "_temporary/0/a.parquet", False),
        ("events-*", "events-1", True),
        ("events-*", "more/events-1", True),
        ("new/*.parquet", "new/a.parquet", True),
        ("new/*.parquet", "old/a.parquet", False),
        ("*.PARQUET", "a.parquet", False),
    ],
)
def test_names_say_which_files_are_read(pattern: str, path: str, *, taken: bool) -> None:
    assert takes(Folder(DeltaPlace(location="/drop"), pattern), path) is taken


def watch_of(location: Path, **options: str) -> FolderWatch:
    relation = relation_of({"location": str(location), **options})
    folder = folder_in(relation)
    return FolderWatch(folder.place, relation, folder, {})


def look(watch: FolderWatch) -> list[str]:
    """Look once, and return what was found."""
    watch.try_to_look()
    return [one.path for one in watch.take(1_000_000)]


def half(path: Path) -> None:
    whole = drop(path.with_name(".whole"), rows(50, 9)).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def mistyped(path: Path) -> None:
    drop(path, rows(50, 9).set_column(2, "amount", pa.array(["x"] * 9)))


def keyless(path: Path) -> None:
    drop(path, rows(50, 9).drop_columns(["id"]))


Change = Callable[[Path], object]
AWAY: dict[str, tuple[Change, str]] = {
    "the folder is away": (lambda at: at.rename(at.with_name("moved")), "is tried again by itself"),
    "nothing is mounted": (lambda at: [one.unlink() for one in at.glob("*.parquet")], "none of its files is there"),
    "a file has other types": (
        lambda at: mistyped(at / "c.parquet"),
        'file "c.parquet" is left out: column "amount" is text in it, and numeric(10,2) in the table',
    ),
    "a file has no key": (lambda at: keyless(at / "c.parquet"), 'column "id" of the primary key is not in it'),
}


@pytest.mark.parametrize("case", AWAY)
def test_i5_a_folder_that_cannot_be_read_as_a_whole_says_so_and_goes_on(tmp_path: Path, case: str) -> None:
    at, (change, why) = tmp_path / "drop", AWAY[case]
    for name in ("a", "b"):
        drop(at / f"{name}.parquet", rows(ord(name) * 100, 5))
    watch = watch_of(at)
    assert look(watch) == ["a.parquet", "b.parquet"]
    assert watch.waiting is None
    copy = shutil.copytree(at, tmp_path / "copy")
    change(at)
    assert look(watch) == []
    assert why in str(watch.waiting)
    assert not watch.over
    shutil.rmtree(at, ignore_errors=True)
    copy.rename(at)
    drop(at / "d.parquet", rows(900, 5))
    assert look(watch) == ["d.parquet"]
    assert (watch.waiting, watch.broken) == (None, None)


BROKEN: dict[str, tuple[Change, str]] = {
    "a file is gone": (lambda at: (at / "a.parquet").unlink(), 'file "a.parquet" is gone'),
    "a file is another one": (lambda at: drop(at / "a.parquet", rows(7, 7)), 'file "a.parquet" has changed'),
    "a file was touched": (lambda at: touch(at / "a.parquet"), 'file "a.parquet" has changed'),
    "a file was renamed": (lambda at: (at / "a.parquet").rename(at / "z.parquet"), 'file "a.parquet" is gone'),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("taken", [True, False])
def test_i5_a_file_that_is_not_what_it_was_breaks_the_table(tmp_path: Path, case: str, *, taken: bool) -> None:
    """Nobody has read a file that was found and not taken: it is found again, if it is there."""
    change, why = BROKEN[case]
    for name in ("a", "b"):
        drop(tmp_path / f"{name}.parquet", rows(ord(name) * 100, 5))
    watch = watch_of(tmp_path)
    if taken:
        assert look(watch) == ["a.parquet", "b.parquet"]
    else:
        watch.look()
    change(tmp_path)
    found = look(watch)
    if taken:
        assert why in str(watch.broken)
        assert watch.over
        return
    assert watch.broken is None
    assert sorted(found) == sorted(one.name for one in tmp_path.glob("*.parquet"))


def test_a_file_is_taken_when_it_is_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(tmp_path / "a.parquet", rows(1, 5))
    (tmp_path / "b.parquet").touch()
    half(tmp_path / "c.parquet")
    watch = watch_of(tmp_path)
    assert look(watch) == ["a.parquet"]
    assert look(watch) == []
    # It is told of when it is not whole for long.
    assert watch.waiting is None
    monkeypatch.setattr(folder_watch, "PATIENCE_SECONDS", 0.0)
    assert look(watch) == []
    assert 'file "b.parquet" is left out: it is no whole Parquet file. Others are read' in str(watch.waiting)
    shutil.copy(drop(tmp_path / ".whole", rows(50, 9)), tmp_path / "c.parquet")
    drop(tmp_path / "b.parquet", rows(70, 9))
    assert sorted(look(watch)) == ["b.parquet", "c.parquet"]
    assert watch.waiting is None


def test_i13_an_epoch_takes_some_of_many_files(tmp_path: Path) -> None:
    for number in range(7):
        touch(drop(tmp_path / f"{number}.parquet", rows(number * 10, 10)))
    watch = watch_of(tmp_path)
    watch.look()
    taken = [[one.path[0] for one in watch.take(15)] for _ in range(5)]
    assert taken == [["0", "1"], ["2", "3"], ["4", "5"], ["6"], []]


class Slow(Watching):
    """A folder whose storage hangs."""

    begun, go_on = threading.Event(), threading.Event()

    @override
    def look(self) -> None:
        self.begun.set()
        self.go_on.wait()


def test_i13_an_epoch_does_not_wait_for_a_storage_that_hangs(tmp_path: Path) -> None:
    drop(tmp_path / "a.parquet", rows(1, 5))
    relation = relation_of({"location": str(tmp_path)})
    slow = Slow(folder_in(relation).place, relation)
    slow.start()
    slow.begun.wait()
    assert slow.waiting is None
    slow.end()
    slow.go_on.set()


def test_i13_epochs_wait_for_first_looks_for_a_tenth_of_the_time() -> None:
    """Each of 45 large folders took 2 s of an epoch."""
    now, waited = [100.0], list[float]()

    class Hanging(threading.Event):
        @override
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            now[0] += timeout or 0.0
            return False

    class Quick(threading.Event):
        @override
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += 0.5
            return True

    looks = FirstLooks(lambda: now[0])
    for _ in range(3):
        looks.wait(Hanging())
    now[0] += 10
    looks.wait(Quick())
    looks.wait(Hanging())
    now[0] += 1000
    looks.wait(Hanging())
    assert waited == pytest.approx([2, 0, 0, 0.5, 2])


@dataclass
class Long(Watching):
    """A folder that takes the processor for long. `again` gets it with each look but the first."""

    again: "queue.Queue[Long]"

    @override
    def look(self) -> None:
        until = time.thread_time() + 1.1 * LONG_SECONDS
        while time.thread_time() < until:
            pass
        if self.looked:
            self.again.put(self)


def test_i13_long_looks_of_all_tables_rest_together(tmp_path: Path) -> None:
    """45 tables over a folder of 30,000 files took the worker's Python as a whole: INSERTs took 13 s."""
    drop(tmp_path / "a.parquet", rows(1, 5))
    relation = relation_of({"location": str(tmp_path)})
    again = queue.Queue[Long]()
    both = [Long(folder_in(relation).place, relation, again) for _ in range(2)]
    for one in both:
        one.start()
    first = again.get()
    with pytest.raises(queue.Empty):
        again.get(timeout=0.5)
    first.end()
    other = again.get()
    other.end()
    assert other is not first


class Held(Long):
    """Its second look lasts until `go_on`."""

    go_on = threading.Event()

    @override
    def look(self) -> None:
        super().look()
        if self.looked:
            self.go_on.wait()


def test_i13_a_long_look_waits_for_none_of_another_caller(tmp_path: Path) -> None:
    """12 tables of others let a folder wait for two minutes."""
    drop(tmp_path / "a.parquet", rows(1, 5))
    relation = relation_of({"location": str(tmp_path)})
    again = queue.Queue[Long]()
    held, other = (Held(folder_in(relation).place, relation, again, caller=caller) for caller in "ab")
    held.start()
    assert again.get() is held
    other.start()
    assert again.get(timeout=60) is other
    held.end()
    other.end()
    held.go_on.set()


def test_a_file_that_changes_while_it_is_looked_at_is_looked_at_again(tmp_path: Path) -> None:
    path = drop(tmp_path / "a.parquet", rows(1, 5))
    folder = folder_of({"location": str(tmp_path)})
    stamp = listed(folder)["a.parquet"]
    assert footer_of(folder.place, "a.parquet", stamp).rows == 5
    touch(path)
    later = listed(folder)["a.parquet"]
    touch(path)
    with pytest.raises(UnfinishedFileError, match="it is being written"):
        footer_of(folder.place, "a.parquet", later)


def test_times_of_objects_are_as_exact_as_all_answers_of_a_store_say_them() -> None:
    info = pa_fs.FileInfo("a", pa_fs.FileType.File, mtime_ns=1_700_000_000_123_456_789, size=5)
    local = pa_fs.LocalFileSystem()
    assert Files(local, "").stamp_of(info) == Stamp(5, 1_700_000_000_123_456_789)
    assert Files(local, None).stamp_of(info) == Stamp(5, 1_700_000_000_000_000_000)


def test_files_of_delta_tables_below_are_left_to_them(tmp_path: Path) -> None:
    drop(tmp_path / "a.parquet", rows(1, 5))
    drop(tmp_path / "t/part-0.parquet", rows(6, 5))
    (tmp_path / "t/_delta_log").mkdir()
    assert look(watch_of(tmp_path)) == ["a.parquet"]
    with pytest.raises(RefusedTableError, match="is a Delta table: connector"):
        describe({"location": str(tmp_path / "t")})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"location": "drop"}, "location is the absolute path"),
        ({"location": "/drop", "colour": "red"}, 'unknown option "colour"'),
        ({"location": "/drop", "match_pattern": ""}, "match_pattern is the name of files"),
        ({"location": "/drop", "match_pattern": "/etc/*"}, "match_pattern is the name of files"),
        ({"location": "/drop", "match_pattern": "*" * 256}, "match_pattern has at most 255 characters"),
        ({"location": "s3://bucket/drop"}, "s3.access.key is missing"),
    ],
)
def test_options_that_name_no_files_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        folder_of(options)


def test_a_folder_that_is_no_table_is_refused(tmp_path: Path) -> None:
    at = {"location": str(tmp_path / "drop")}
    with pytest.raises(RefusedTableError, match="cannot be read by the worker"):
        describe(at)
    (tmp_path / "drop").mkdir()
    with pytest.raises(ValueError, match="no whole file is there, whose columns"):
        relation_of(at)
    drop(tmp_path / "drop/a.parquet", rows(1, 5))
    mistyped(tmp_path / "drop/b.parquet")
    with pytest.raises(RefusedTableError, match=r'column "amount" is .* in one file, and .* in "b\.parquet"'):
        describe(at)


TYPES: list[tuple[pa.DataType, list[Any], str, list[Any]]] = [
    (pa.int8(), [-3, None], "smallint", [-3, None]),
    (pa.uint8(), [255], "smallint", [255]),
    (pa.int16(), [7], "smallint", [7]),
    (pa.uint16(), [65535], "integer", [65535]),
    (pa.int32(), [7], "integer", [7]),
    (pa.uint32(), [4294967295], "bigint", [4294967295]),
    (pa.int64(), [7], "bigint", [7]),
    (pa.float32(), [0.5], "real", [0.5]),
    (pa.float64(), [0.1], "double precision", [0.1]),
    (pa.bool_(), [True, None], "boolean", [True, None]),
    (pa.large_string(), ["é", ""], "text", ["é", ""]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"], "text", ["a", "b", "a"]),
    (pa.large_binary(), [b"\x00x"], "bytea", [b"\x00x"]),
    (pa.date32(), [date(2026, 1, 2)], "date", [date(2026, 1, 2)]),
    (pa.decimal128(20, 3), [Decimal("1.500")], "numeric(20,3)", [Decimal("1.500")]),
    (pa.list_(pa.int32()), [[1, None], None], "integer[]", [[1, None], None]),
    (pa.large_list(pa.string()), [["a"], []], "text[]", [["a"], []]),
]


@pytest.mark.parametrize(("kind", "values", "column", "read"), TYPES, ids=[str(one[0]) for one in TYPES])
async def test_types_of_parquet_are_those_of_columns(
    tmp_path: Path, kind: pa.DataType, values: list[Any], column: str, read: list[Any]
) -> None:
    ids = pa.array(range(len(values)), pa.int64())
    drop(tmp_path / "a.parquet", pa.table({"id": ids, "v": pa.array(values, kind)}))
    async with followed({"location": str(tmp_path)}) as table:
        assert str(table.relation.column("v").type) == column
        table.step(FIRST)
        found = table.rows(FIRST)
    assert [value for _, value in found] == read


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (pa.struct([("x", pa.int64())]), "is a struct, which no column of a table can hold"),
        (pa.map_(pa.string(), pa.int64()), "is a map, which no column of a table can hold"),
        (pa.time64("us"), r"has type time64\[us\], which is not supported"),
        (pa.uint64(), "has type uint64, which is not supported"),
    ],
)
def test_types_that_no_column_has_are_refused_by_name(tmp_path: Path, kind: pa.DataType, why: str) -> None:
    drop(tmp_path / "a.parquet", pa.table({"id": pa.array([1], pa.int64()), "v": pa.array([None], kind)}))
    with pytest.raises(ValueError, match=why):
        relation_of({"location": str(tmp_path)})
    chosen = [Column(name="id", type=ColumnType.parse("bigint"))]
    assert [one.name for one in relation_of({"location": str(tmp_path)}, chosen).columns] == ["id"]
