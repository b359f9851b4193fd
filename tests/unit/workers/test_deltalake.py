"""I14: a sink's Delta table has each net change once, whoever died or woke up when."""

import json
import pickle
import socket
from collections.abc import Generator, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError
from pyarrow.fs import FileSelector

from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import Epoch, Generation, RelationId
from service.protocol.relation import Relation, RelationKind
from tests.support.lakes import SECRET, Lake, bucket, folder, object_store
from workers.connectors import delta_changes, delta_files, deltalake
from workers.connectors.delta_files import Files
from workers.connectors.deltalake import DeltaSink
from workers.connectors.port import RefusedRowError, RefusedTableError, Sink
from workers.runners.failure import explain
from workers.state_store.port import CLOSE, LIVE, OPERATION, PAGE

RELATION = Relation(
    id=RelationId(1),
    name="s",
    kind=RelationKind.SINK,
    columns=(
        Column(name="Id", type=ColumnType.parse("bigint"), nullable=True),
        Column(name="v", type=ColumnType.parse("text"), nullable=True),
    ),
    key=(KeyColumn(name="Id"),),
)
Row = tuple[int, int | None, str | None]


@pytest.fixture(scope="session")
def address() -> Generator[str]:
    with object_store() as address:
        yield address


@pytest.fixture(params=["folder", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return folder(tmp_path) if request.param == "folder" else bucket(request.getfixturevalue("address"))


class Table:
    """A sink, and what its table holds."""

    def __init__(self, lake: Lake, relation: Relation = RELATION, /, **options: str) -> None:
        self.lake, self.relation = lake, relation
        self.options = {"location": f"{lake.location}/t", "app": "tidefill-test", **lake.options, **options}
        deltalake.claim(self.options, relation)
        self.generations = count(1)

    def begin(self, committed: int) -> DeltaSink:
        sink = self.sink(next(self.generations))
        sink.begin(Epoch(committed))
        return sink

    def sink(self, generation: int) -> DeltaSink:
        return DeltaSink.of(self.options, self.relation, Generation(generation))

    @property
    def rows(self) -> list[tuple[int | None, str | None]]:
        return sorted(((one["Id"], one["v"]) for one in self.lake.rows()), key=repr)

    @property
    def version(self) -> int:
        return self.lake.table().version()

    @property
    def data(self) -> set[str]:
        """Every file of rows that there is, whether it is part of the table or not."""
        found: Any = self.sink(0).files.system.get_file_info(FileSelector("", recursive=True))
        return {one.path for one in found if one.path.endswith(".parquet") and not one.path.startswith("_")}


def prepare(sink: DeltaSink | Sink, epoch: int, *rows: Row) -> None:
    sink.writer.write(RELATION, Epoch(epoch), batches(rows))


def batches(rows: Sequence[Row]) -> Iterable[pa.RecordBatch]:
    for operation, key, value in rows:
        columns = [
            pa.array([operation], pa.int8()),
            pa.array([0], pa.int16()),
            pa.array([key], pa.int64()),
            pa.array([value], pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, names=[OPERATION, "_vnode", "Id", "v"])


def test_i14_an_epoch_is_delivered_once_it_is_committed_and_once(lake: Lake) -> None:
    table = Table(lake)
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"), (PAGE, 2, "b"))
    prepare(sink, 5, (PAGE, 3, "c"))
    prepare(sink, 6, (CLOSE, 1, "a"), (LIVE, 1, "A"), (CLOSE, 2, "b"))
    assert table.rows == []
    sink.commit(Epoch(5))
    assert table.rows == [(1, "a"), (2, "b"), (3, "c")]
    sink.commit(Epoch(6))
    version = table.version
    for _ in range(2):
        sink.commit(Epoch(6))
    assert table.rows == [(1, "A"), (3, "c")]
    assert table.version == version


def test_several_epochs_are_one_commit_with_the_last_change_of_each_key(lake: Lake) -> None:
    table = Table(lake)
    sink = table.begin(0)
    prepare(sink, 2, (LIVE, 1, "a"), (LIVE, 2, "b"), (LIVE, None, "n"))
    prepare(sink, 3, (CLOSE, 1, "a"), (CLOSE, None, "n"), (LIVE, None, "N"))
    # Another task of the epoch has the new row: what ended comes first, whichever file is read first.
    prepare(sink, 3, (LIVE, 2, "c"))
    prepare(sink, 3, (CLOSE, 2, "b"))
    before = table.version
    sink.commit(Epoch(3))
    assert (table.rows, table.version) == ([(2, "c"), (None, "N")], before + 1)


def test_i14_what_is_cut_off_between_its_two_commits_goes_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch with history and changes had all once one of them was there: the other one was lost."""
    table = Table(lake)
    sink = table.begin(0)
    prepare(sink, 2, (LIVE, 1, "A"), (CLOSE, 2, "b"))
    prepare(sink, 2, (PAGE, 3, "c"))
    prepare(sink, 3, (LIVE, 3, "C"), (PAGE, 4, "d"))

    def cut(*_: object) -> None:
        raise OSError("away")

    for name in ("merge", "_append"):
        with monkeypatch.context() as patch:
            patch.setattr(DeltaSink, name, cut)
            with pytest.raises(OSError, match="away"):
                sink.commit(Epoch(3))
    sink.commit(Epoch(3))
    assert table.rows == [(1, "A"), (3, "C"), (4, "d")]
    version = table.version
    assert (sink.commit(Epoch(3)), sink.commit(Epoch(3), again=True)) == (None, version)


def test_i13_changes_of_an_outage_are_merged_in_portions(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that had waited was taken into the worker's memory at once."""
    monkeypatch.setattr(delta_changes, "MERGED_ROWS", 3)
    table = Table(lake)
    sink = table.begin(0)
    prepare(sink, 2, (LIVE, 1, "a"), (LIVE, 2, "b"))
    prepare(sink, 3, (CLOSE, 1, "a"))
    prepare(sink, 4, *((LIVE, key, "c") for key in range(3, 7)))
    prepare(sink, 5, (CLOSE, 2, "b"), (LIVE, 2, "B"), (CLOSE, 3, "c"))
    before = table.version
    sink.commit(Epoch(5))
    assert table.rows == [(2, "B"), (4, "c"), (5, "c"), (6, "c")]
    assert table.version == before + 3
    # One that was cut off between them goes on behind the portions that are there.
    assert [
        sink.marks(DeltaTable(f"{lake.location}/t", version=version, storage_options=lake.storage))[0]
        for version in range(before, before + 4)
    ] == [0, 3, 4, 5]


def test_i13_changes_of_large_values_are_merged_in_portions(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte of rows, which has 50 MB on disk, took 4.5 GB of memory."""
    monkeypatch.setattr(delta_changes, "MERGED_BYTES", 5000)
    table = Table(lake)
    sink = table.begin(0)
    for epoch in range(2, 8):
        prepare(sink, epoch, (LIVE, epoch, "x" * 2000))
    before = table.version
    sink.commit(Epoch(7))
    assert [key for key, _ in table.rows] == [2, 3, 4, 5, 6, 7]
    assert table.version == before + 3


@pytest.mark.parametrize("named", ["../other", "/{0}/other", "link/other", "other", "./tidefill-{1}.parquet"])
def test_i13_a_note_removes_no_file_of_others(tmp_path: Path, named: str) -> None:
    """A program that could write into the folder had a DROP SINK remove any file that the worker may remove."""
    other = tmp_path / "other"
    other.write_text("mine")
    lake = folder(tmp_path / "lake")
    sink = Table(lake).begin(0)
    place = Path(lake.location, "t")
    (place / "link").symlink_to(tmp_path)
    epoch = place / f"_tidefill/tidefill-test/{sink.generation}/7"
    epoch.mkdir(parents=True)
    path = named.format(str(tmp_path).removeprefix("/"), "0" * 16)
    (epoch / "x.json").write_text(json.dumps({"path": path, "size": 1, "rows": 1, "values": []}))
    with pytest.raises(RefusedTableError, match="which no task has made"):
        sink.clean_up()
    assert other.exists()


def test_i13_many_pending_changes_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verification of a view whose changes of an hour waited took the worker 18 GB."""
    sink = Table(folder(tmp_path)).begin(0)
    prepare(sink, 2, (LIVE, 1, "a"), (LIVE, 2, "b"))
    _, changes = sink.pending(Epoch(2))
    assert changes is not None
    assert changes.num_rows == 2
    monkeypatch.setattr(deltalake, "MERGED_BYTES", 10)
    with pytest.raises(RefusedTableError, match=r"wait for the next commit \(commit_interval\)"):
        sink.pending(Epoch(2))


def test_i3_i14_what_died_uncommitted_is_never_there(lake: Lake) -> None:
    table = Table(lake)
    first = table.begin(0)
    prepare(first, 5, (PAGE, 1, "a"))
    prepare(first, 7, (PAGE, 2, "dead"))
    second = table.begin(5)
    assert table.rows == [(1, "a")]
    # The first generation is still awake, and prepares an epoch whose number is committed one day, by others.
    prepare(first, 7, (PAGE, 3, "zombie"))
    # Nothing changed in the epochs up to 9, so the table does not know of them.
    second.commit(Epoch(9))
    third = table.begin(9)
    assert table.rows == [(1, "a")]
    prepare(third, 11, (PAGE, 2, "b"))
    third.commit(Epoch(11))
    assert table.rows == [(1, "a"), (2, "b")]
    assert table.data == {one.rpartition("/")[2] for one in lake.table().file_uris()}


def test_i7_i14_a_late_delivery_of_an_old_generation_is_no_second_one(lake: Lake) -> None:
    table = Table(lake)
    first = table.begin(0)
    prepare(first, 5, (PAGE, 1, "a"))
    late = lake.table()
    table.begin(5)
    assert table.rows == [(1, "a")]
    first.commit(Epoch(5))
    again = CommitProperties(app_transactions=[Transaction("tidefill-test.pages", 5)])
    with pytest.raises(Exception, match="Concurrent transaction"):
        late.create_write_transaction([], "append", late.schema(), commit_properties=again)
    assert table.rows == [(1, "a")]


def test_i14_a_delivery_that_was_killed_after_its_commit_is_not_repeated(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(lake)
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"))
    prepare(sink, 5, (PAGE, 2, "b"))

    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(Files, "remove_folder", killed)
        with pytest.raises(SystemExit):
            sink.commit(Epoch(5))
    assert table.rows == [(1, "a"), (2, "b")]
    # After a compaction, the same files again would be rows again.
    assert table.lake.table().optimize.compact()["numFilesRemoved"] == 2
    table.begin(5)
    assert table.rows == [(1, "a"), (2, "b")]


def test_i14_a_target_that_is_away_is_not_made_anew(tmp_path: Path) -> None:
    """Files in the place of a volume that is not mounted would be lost when it is."""
    table = Table(folder(tmp_path))
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"))
    (tmp_path / "t").rename(tmp_path / "away")
    for operation in (PAGE, LIVE):
        with pytest.raises(FileNotFoundError):
            prepare(sink, 6, (operation, 2, "b"))
    sink.commit(Epoch(5))
    with pytest.raises(TableNotFoundError):
        table.begin(5)
    assert not (tmp_path / "t").exists()
    (tmp_path / "away").rename(tmp_path / "t")
    table.begin(5)
    assert table.rows == [(1, "a")]


def test_a_file_that_somebody_removed_is_missed_at_once(lake: Lake) -> None:
    table = Table(lake)
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"))
    for one in table.data:
        sink.files.remove(one)
    with pytest.raises(FileNotFoundError):
        sink.commit(Epoch(5))


def test_a_sink_that_appends_refuses_changes_or_leaves_them_out(lake: Lake) -> None:
    table = Table(lake, type="append-only")
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"), (LIVE, 2, "b"))
    with pytest.raises(RefusedRowError, match="type 'upsert'"):
        prepare(sink, 6, (CLOSE, 1, "a"), (LIVE, 1, "c"))
    sink.commit(Epoch(5))
    forced = Table(lake, type="append-only", force_append_only="true", app="tidefill-other")
    sink = forced.begin(0)
    prepare(sink, 3, (CLOSE, 1, "a"), (LIVE, 1, "c"))
    sink.commit(Epoch(3))
    assert forced.rows == [(1, "a"), (1, "c"), (2, "b")]


def test_i9_a_dropped_sink_leaves_its_rows_and_nothing_else(lake: Lake) -> None:
    table = Table(lake)
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"))
    sink.commit(Epoch(5))
    prepare(sink, 6, (LIVE, 2, "b"))
    sink.clean_up()
    assert table.rows == [(1, "a")]
    assert sink.files.names("_tidefill") == []


def test_a_dropped_sink_takes_its_table_along_if_it_is_asked_to(lake: Lake) -> None:
    """Unless others may write to the table."""
    shared = Table(lake, type="append-only").begin(0)
    with pytest.raises(ValueError, match="may have rows of other writers"):
        shared.clean_up(purge=True)
    assert shared.files.names("_delta_log")
    table = Table(lake)
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"))
    sink.commit(Epoch(5))
    sink.clean_up(purge=True)
    assert sink.files.names("") == []
    Table(lake).begin(0)


@pytest.mark.parametrize(
    ("found", "options", "reason"),
    [
        ("file", {}, "is not empty, and no Delta table"),
        ("rows", {}, "has rows already"),
        ("columns", {"type": "append-only"}, "has other columns"),
        ("table", {"type": "append-only", "partition_by": "Id"}, "has other partitions: partition_by = ''"),
        ("parts", {"type": "append-only"}, "has other partitions: partition_by = 'v'"),
    ],
)
def test_a_target_that_cannot_be_used_is_refused(lake: Lake, found: str, options: dict[str, str], reason: str) -> None:
    if found == "file":
        place = {"location": f"{lake.location}/t", **lake.options}
        Path(lake.location, "t").mkdir(exist_ok=True) if not lake.options else None
        DeltaSink.of(place, RELATION, Generation(0)).files.put("notes.txt", b"")
    elif found == "rows":
        sink = Table(lake).begin(0)
        prepare(sink, 1, (PAGE, 1, "a"))
        sink.commit(Epoch(1))
    elif found == "columns":
        Table(lake, RELATION.model_copy(update={"columns": RELATION.columns[:1]}))
    else:
        Table(lake, **({"partition_by": "v"} if found == "parts" else {}))
    with pytest.raises(ValueError, match=reason):
        Table(lake, **options)


@pytest.mark.parametrize("away", [{"location": f"{__file__}/none"}, {"s3.endpoint": "http://127.0.0.1:1"}])
def test_a_target_that_is_away_is_refused(tmp_path: Path, address: str, away: dict[str, str]) -> None:
    lake = bucket(address) if "s3.endpoint" in away else folder(tmp_path)
    with pytest.raises(ValueError, match="cannot be used by the worker") as refused:
        Table(lake, **away)
    assert SECRET not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_what_fails_a_delivery_is_said_in_a_line(address: str) -> None:
    table = Table(bucket(address))
    table.options["s3.endpoint"] = "http://127.0.0.1:1"
    with pytest.raises(OSError, match="Kernel error") as failed:
        table.begin(0)
    deterministic, reason = explain(failed.value)
    assert not deterministic
    assert "127.0.0.1:1" in reason
    assert SECRET not in reason


def test_i13_a_store_that_does_not_answer_is_given_up(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_files, "REQUEST_SECONDS", 1)
    monkeypatch.setattr(delta_files, "TRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ValueError, match="cannot be used"):
        Table(bucket(address), **{"s3.endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}"})


def test_no_secret_of_a_location_is_shown(address: str) -> None:
    sink = Table(bucket(address)).begin(0)
    assert SECRET not in f"{sink!r} {sink.writer!r} {sink.files!r} {sink.options}"
    # Tasks have it in what is serialized for them.
    assert pickle.loads(pickle.dumps(sink.writer)) == sink.writer


PARTED = RELATION.model_copy(
    update={
        "columns": (
            *RELATION.columns,
            *(
                Column(name=name, type=ColumnType.parse(kind), nullable=True)
                for name, kind in {
                    "b": "boolean",
                    "i": "int",
                    "n": "numeric(30)",
                    "d": "date",
                    "at": "timestamp",
                    "z": "timestamptz",
                }.items()
            ),
        )
    }
)
VALUES: Final[list[dict[str, Any]]] = [
    {"v": "a/b c%:=ü 'x' \n{}", "b": True, "i": -5, "n": Decimal(10) ** 29, "d": date(1, 1, 1)},
    {"v": "plain", "at": datetime(2026, 1, 2, 3, 4, 5, 60), "z": datetime(1969, 12, 31, 23, tzinfo=UTC)},  # noqa: DTZ001
    {"v": None, "b": False},
]


def parted_rows(operation: int, first: int) -> pa.RecordBatch:
    """Return a row of each of `VALUES`, with a key of its own."""
    types = {
        "Id": pa.int64(),
        "v": pa.string(),
        "b": pa.bool_(),
        "i": pa.int32(),
        "n": pa.decimal128(30),
        "d": pa.date32(),
        "at": pa.timestamp("us"),
        "z": pa.timestamp("us", "UTC"),
    }
    rows = [{OPERATION: operation, "_vnode": 0, "Id": first + place, **one} for place, one in enumerate(VALUES)]
    schema = pa.schema({OPERATION: pa.int8(), "_vnode": pa.int16(), **types})
    return pa.RecordBatch.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)


def found_in(lake: Lake) -> list[dict[str, Any]]:
    """Return the values of the rows in the order of their keys, without NULLs."""
    rows = sorted(lake.rows(), key=lambda row: row["Id"])
    return [{name: value for name, value in row.items() if name != "Id" and value is not None} for row in rows]


WANTED: Final = [{name: value for name, value in one.items() if value is not None} for one in VALUES]


def test_a_task_writes_a_file_for_each_partition(lake: Lake) -> None:
    table = Table(lake, PARTED, type="append-only", partition_by="v, b, i, n, d, at, z")
    sink = table.begin(0)
    (mixed,) = pa.Table.from_batches([parted_rows(PAGE, 1), parted_rows(PAGE, 4)]).combine_chunks().to_batches()
    sink.writer.write(PARTED, Epoch(5), [mixed, parted_rows(PAGE, 7)])
    sink.commit(Epoch(5))
    assert found_in(lake) == WANTED * 3
    files = lake.table().file_uris()
    assert len(files) == len(VALUES)
    assert {f"{lake.location}/t/{one}" for one in table.data} == set(files)
    assert any("/v=a%2Fb%20c%25%3A%3D%C3%BC" in one and "/d=0001-01-01/" in one for one in files)
    assert any("/v=__HIVE_DEFAULT_PARTITION__/b=false/" in one for one in files)
    log = sink.files.read("_delta_log/00000000000000000001.json").decode()
    assert '"z":"1969-12-31T23:00:00.000000Z"' in log
    assert '"at":"2026-01-02 03:04:05.000060"' in log


def test_i14_partitions_are_merged_and_survive_a_kill(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(lake, PARTED, partition_by="v, b, i, n, d, at")
    sink = table.begin(0)
    sink.writer.write(PARTED, Epoch(5), [parted_rows(PAGE, 1)])

    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(Files, "remove_folder", killed)
        with pytest.raises(SystemExit):
            sink.commit(Epoch(5))
    sink = table.begin(5)
    assert found_in(lake) == WANTED
    moved = parted_rows(LIVE, 2)
    sink.writer.write(PARTED, Epoch(6), [parted_rows(CLOSE, 1), moved])
    sink.commit(Epoch(6))
    assert found_in(lake) == WANTED
    assert min(row["Id"] for row in lake.rows()) == 2


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [("v", "", "no empty text"), ("v", "x" * 201, "so long"), ("d", 3_000_000, "no year")],
)
@pytest.mark.parametrize("operation", [PAGE, LIVE])
def test_a_value_that_is_no_partition_is_refused(
    tmp_path: Path, column: str, value: object, reason: str, operation: int
) -> None:
    sink = Table(folder(tmp_path), PARTED, partition_by=column).begin(0)
    rows = parted_rows(operation, 1)
    place = rows.schema.get_field_index(column)
    rows = rows.set_column(
        place,
        column,
        pa.array([value, None, None], pa.int32() if column == "d" else pa.string()).cast(rows.schema.types[place]),
    )
    with pytest.raises(RefusedRowError, match=reason):
        sink.writer.write(PARTED, Epoch(5), [rows])
