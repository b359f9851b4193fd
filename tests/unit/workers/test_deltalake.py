"""I14: a sink's Delta table has each net change once, whoever died or woke up when."""

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError

from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import Epoch, Generation, RelationId
from service.protocol.relation import Relation, RelationKind
from workers.connectors import deltalake
from workers.connectors.deltalake import DeltaSink
from workers.connectors.port import RefusedRowError
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


class Table:
    """A sink, and what its table holds."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.options = {"location": str(folder), "app": "tidefill-test", **options}
        deltalake.claim(self.options, RELATION)
        self.generations = count(1)

    def begin(self, committed: int) -> DeltaSink:
        sink = self.sink(next(self.generations))
        sink.begin(Epoch(committed))
        return sink

    def sink(self, generation: int) -> DeltaSink:
        return DeltaSink.of(self.options, RELATION, Generation(generation))

    @property
    def rows(self) -> list[tuple[int | None, str | None]]:
        found = pa.table(DeltaTable(self.options["location"]).to_pyarrow_table())
        return sorted(((one["Id"], one["v"]) for one in found.to_pylist()), key=repr)

    @property
    def version(self) -> int:
        return DeltaTable(self.options["location"]).version()


def prepare(sink: DeltaSink, epoch: int, *rows: Row) -> None:
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


def test_i14_an_epoch_is_delivered_once_it_is_committed_and_once(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
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


def test_several_epochs_are_one_commit_with_the_last_change_of_each_key(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    sink = table.begin(0)
    prepare(sink, 2, (LIVE, 1, "a"), (LIVE, 2, "b"), (LIVE, None, "n"))
    prepare(sink, 3, (CLOSE, 1, "a"), (CLOSE, None, "n"), (LIVE, None, "N"))
    # Another task of the epoch has the new row: what ended comes first, whichever file is read first.
    prepare(sink, 3, (LIVE, 2, "c"))
    prepare(sink, 3, (CLOSE, 2, "b"))
    before = table.version
    sink.commit(Epoch(3))
    assert (table.rows, table.version) == ([(2, "c"), (None, "N")], before + 1)


def test_i3_i14_what_died_uncommitted_is_never_there(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
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
    data = {one.name for one in (tmp_path / "t").glob("*.parquet")}
    assert data == {Path(one).name for one in DeltaTable(str(tmp_path / "t")).file_uris()}


def test_i7_i14_a_late_delivery_of_an_old_generation_is_no_second_one(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    first = table.begin(0)
    prepare(first, 5, (PAGE, 1, "a"))
    late = DeltaTable(str(tmp_path / "t"))
    table.begin(5)
    assert table.rows == [(1, "a")]
    first.commit(Epoch(5))
    again = CommitProperties(app_transactions=[Transaction("tidefill-test", 5)])
    with pytest.raises(Exception, match="Concurrent transaction"):
        late.create_write_transaction([], "append", late.schema(), commit_properties=again)
    assert table.rows == [(1, "a")]


def test_i14_a_delivery_that_was_killed_after_its_commit_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path / "t")
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"))
    prepare(sink, 5, (PAGE, 2, "b"))

    def killed(_: Path) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(deltalake, "rmtree", killed)
        with pytest.raises(SystemExit):
            sink.commit(Epoch(5))
    assert table.rows == [(1, "a"), (2, "b")]
    # Somebody puts the files together: the same files again would be rows again.
    assert DeltaTable(str(tmp_path / "t")).optimize.compact()["numFilesRemoved"] == 2
    table.begin(5)
    assert table.rows == [(1, "a"), (2, "b")]


def test_i14_a_target_that_is_away_is_not_made_anew(tmp_path: Path) -> None:
    """Files in the place of a volume that is not mounted would be lost when it is."""
    table = Table(tmp_path / "t")
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"))
    (tmp_path / "t").rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        prepare(sink, 6, (PAGE, 2, "b"))
    sink.commit(Epoch(5))
    with pytest.raises(TableNotFoundError):
        table.begin(5)
    assert not (tmp_path / "t").exists()
    (tmp_path / "away").rename(tmp_path / "t")
    table.begin(5)
    assert table.rows == [(1, "a")]


def test_a_file_that_somebody_removed_is_missed_at_once(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"))
    for one in (tmp_path / "t").glob("*.parquet"):
        one.unlink()
    with pytest.raises(FileNotFoundError):
        sink.commit(Epoch(5))


def test_a_sink_that_appends_refuses_changes_or_leaves_them_out(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", type="append-only")
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"), (LIVE, 2, "b"))
    with pytest.raises(RefusedRowError, match="type 'upsert'"):
        prepare(sink, 6, (CLOSE, 1, "a"), (LIVE, 1, "c"))
    sink.commit(Epoch(5))
    forced = Table(tmp_path / "t", type="append-only", force_append_only="true", app="tidefill-other")
    sink = forced.begin(0)
    prepare(sink, 3, (CLOSE, 1, "a"), (LIVE, 1, "c"))
    sink.commit(Epoch(3))
    assert forced.rows == [(1, "a"), (1, "c"), (2, "b")]


def test_i9_a_dropped_sink_leaves_its_rows_and_nothing_else(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    sink = table.begin(0)
    prepare(sink, 5, (PAGE, 1, "a"))
    sink.commit(Epoch(5))
    prepare(sink, 6, (LIVE, 2, "b"))
    sink.clean_up()
    assert table.rows == [(1, "a")]
    assert list((tmp_path / "t" / "_tidefill").iterdir()) == []


@pytest.mark.parametrize(
    ("found", "options", "reason"),
    [
        ("file", {}, "is not empty, and no Delta table"),
        ("rows", {}, "has rows already"),
        ("columns", {"type": "append-only"}, "has other columns"),
        ("nothing", {"location": "/proc/none"}, "cannot be used by the worker"),
    ],
)
def test_a_target_that_cannot_be_used_is_refused(
    tmp_path: Path, found: str, options: dict[str, str], reason: str
) -> None:
    folder = tmp_path / "t"
    if found == "file":
        folder.mkdir()
        (folder / "notes.txt").touch()
    elif found == "rows":
        sink = Table(folder).begin(0)
        prepare(sink, 1, (PAGE, 1, "a"))
        sink.commit(Epoch(1))
    elif found == "columns":
        other = RELATION.model_copy(update={"columns": RELATION.columns[:1]})
        deltalake.claim({"location": str(folder)}, other)
    with pytest.raises(ValueError, match=reason):
        Table(folder, **options)
