"""A Delta table that is written all the time has few files, and none for ever; what may still be read stays."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from service.protocol.ids import Epoch
from tests.support.lakes import folder
from tests.unit.workers.test_deltalake import Table, prepare
from workers.connectors import delta_upkeep
from workers.connectors.delta_rows import changes_of
from workers.connectors.delta_upkeep import keep_up, retention_hours
from workers.connectors.deltalake import DeltaSink
from workers.connectors.port import KeptVersions
from workers.state_store.port import CLOSE, LIVE, PAGE

HOUR = 3600


def files(path: Path) -> set[str]:
    return {one.name for one in path.glob("*.parquet")}


def aged(path: Path, hours: float) -> None:
    """Make all files older."""
    for one in [*path.glob("*.parquet"), *path.glob("_delta_log/*.json")]:
        then = one.stat().st_mtime - hours * HOUR
        os.utime(one, (then, then))


def here(call: Any, /, *args: Any, **more: Any) -> Any:
    return call(*args, **more)


def kept_up(sink: DeltaSink, kept: KeptVersions) -> None:
    keep_up(sink.options, kept, here, here)


def vacuumed() -> None:
    for thread in threading.enumerate():
        if thread.name == "vacuum":
            thread.join()


def changed(table: Table, epochs: range) -> None:
    sink = table.begin(0)
    for number in epochs:
        prepare(sink, 2 * number, (CLOSE, 1, None), (LIVE, 1, f"v{number}"))
        sink.commit(Epoch(2 * number))
        prepare(sink, 2 * number + 1, (PAGE, 100 + number, "new"))
        sink.commit(Epoch(2 * number + 1))


def test_small_files_are_joined_and_no_row_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_upkeep, "JOIN_VERSIONS", 5)
    table = Table(folder(tmp_path), primary_key="Id")
    changed(table, range(1, 8))
    sink, rows, before = table.sink(9), table.rows, table.version
    assert len(table.lake.table().file_uris()) > 3
    kept_up(sink, tuple)
    assert len(table.lake.table().file_uris()) == 1
    assert table.rows == rows
    vacuumed()
    version = table.version
    kept_up(sink, tuple)
    assert table.version == version, "it is not due any more"
    place, relation = sink.options, table.relation
    assert [*changes_of(place, relation, before, table.version)] == [], "whoever reads it in place sees no change"


def test_replaced_files_go_and_what_an_epoch_may_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []

    def hours(_options: object, oldest: float | None, _now: float) -> int:
        asked.append(oldest)
        return 0 if oldest is None else 1

    monkeypatch.setattr(delta_upkeep, "retention_hours", hours)
    table = Table(folder(tmp_path), primary_key="Id", retention="2 h")
    changed(table, range(1, 6))
    path, read = tmp_path / "t", table.version - 2
    aged(path, 30)
    kept_up(table.sink(9), lambda: (read, table.version))
    vacuumed()
    assert asked == [pytest.approx((path / f"_delta_log/{read:020}.json").stat().st_mtime)]
    assert DeltaTable(str(path), version=read).to_pyarrow_table()
    rows, options = table.rows, table.sink(9).options
    version = table.version
    kept_up(table.sink(9), tuple)
    vacuumed()
    assert (len(asked), table.version) == (1, version), "it is not due again"
    delta_upkeep.vacuum(options, ())
    with pytest.raises(FileNotFoundError):
        DeltaTable(str(path), version=read).to_pyarrow_table()
    assert table.rows == rows


def test_a_vacuum_beside_a_merge_fails_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_upkeep, "JOIN_VERSIONS", 1000)
    table = Table(folder(tmp_path), primary_key="Id")
    sink = table.begin(0)
    prepare(sink, 1, (LIVE, 1, "a"))
    real = DeltaTable.merge

    def late(*given: Any, **more: Any) -> Any:
        monkeypatch.undo()
        kept_up(sink, tuple)
        vacuumed()
        return real(*given, **more)

    monkeypatch.setattr(DeltaTable, "merge", late)
    sink.commit(Epoch(1))
    assert table.rows == [(1, "a")]
    assert table.version > 2


@pytest.mark.parametrize(
    ("retention", "commit", "oldest", "hours"),
    [("1 day", "10 s", None, 25), ("2 h", "10 s", None, 3), ("2 h", "6 h", None, 13), ("2 h", "10 s", 50 * HOUR, 51)],
)
def test_the_retention_is_the_longest_of_all(
    tmp_path: Path, retention: str, commit: str, oldest: int | None, hours: int
) -> None:
    options = Table(folder(tmp_path), primary_key="Id", retention=retention, commit_interval=commit).sink(1).options
    now = 1_800_000_000.0
    assert retention_hours(options, None if oldest is None else now - oldest, now) == hours


def test_a_table_that_others_may_append_to_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_upkeep, "JOIN_VERSIONS", 0)
    table = Table(folder(tmp_path), type="append-only")
    sink = table.begin(0)
    prepare(sink, 1, (LIVE, 1, "a"))
    sink.commit(Epoch(1))
    version = table.version
    kept_up(sink, tuple)
    vacuumed()
    assert table.version == version


def test_i13_a_vacuum_removes_no_file_behind_a_link(tmp_path: Path) -> None:
    """The log of a table may call any file removed, and a link in its folder leads to those of others."""
    table = Table(folder(tmp_path), primary_key="Id")
    changed(table, range(5, 9))
    path, theirs = tmp_path / "t", tmp_path / "theirs"
    theirs.mkdir()
    kept = theirs / "part.parquet"
    kept.write_bytes(b"rows of somebody else")
    (path / "l").symlink_to(theirs)
    log = path / f"_delta_log/{table.version + 1:020}.json"
    gone = {"path": "l/part.parquet", "deletionTimestamp": 1, "dataChange": True}
    log.write_text(json.dumps({"remove": gone}))
    aged(path, 100 * 24)
    os.utime(kept, (1, 1))
    removed, _ = delta_upkeep.vacuum(table.sink(9).options, ())
    assert kept.exists()
    assert removed == 0
