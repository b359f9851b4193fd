"""I13: whatever lies in the folder of a Delta table, the worker keeps its memory and its time."""

import base64
import json
import os
import struct
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from service.protocol.delta import DeltaPlace
from service.protocol.ids import Epoch
from tests.support.lakes import expand, folder
from tests.support.waiting import until
from tests.unit.workers.test_deltalake import RELATION, Table, prepare
from workers.connectors import delta_apart, delta_rows, delta_shape, delta_watch
from workers.connectors.delta_apart import ApartSink
from workers.connectors.limited import CALLER, TEXT_MAX, MemoryShares, Standing
from workers.connectors.port import RefusedTableError
from workers.state_store.port import CLOSE, LIVE, PAGE


@pytest.fixture(autouse=True)
def _caller(request: pytest.FixtureRequest) -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    """Have the processes of a test end with it."""
    token = CALLER.set(caller := request.node.name)
    yield
    CALLER.reset(token)
    delta_apart._STANDING.of(caller).end()  # pyright: ignore[reportPrivateUsage]


def apart(table: Table, generation: int = 1) -> ApartSink:
    return ApartSink(table.sink(generation))


def test_i13_a_merge_of_a_large_table_has_the_share_of_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 GB of rows, which have a few megabytes on disk, took the worker 8 GB."""
    monkeypatch.setattr(delta_apart, "MEMORY", 400 << 20)
    monkeypatch.setattr(delta_apart, "_SECONDS", 10.0)
    monkeypatch.setattr(delta_apart, "SHARES", MemoryShares(1200 << 20))
    table = Table(folder(tmp_path))
    sink = apart(table)
    sink.begin(Epoch(0))
    prepare(sink, 2, *((PAGE, key, "x" * (1 << 20)) for key in range(300)))
    sink.commit(Epoch(2))
    prepare(sink, 3, (CLOSE, 7, "x"), (LIVE, 7, "y"))
    before = table.version
    with pytest.raises(RefusedTableError, match="more than 600 MB of memory: with partitions"):
        sink.commit(Epoch(3))
    monkeypatch.setattr(delta_apart, "SHARES", merges := MemoryShares(2400 << 20))
    with merges.share("another"), pytest.raises(OSError, match="the merges of others leave too little memory"):
        sink.commit(Epoch(3))
    assert table.version == before
    monkeypatch.setattr(delta_apart, "SHARES", MemoryShares(8 << 30))
    sink.commit(Epoch(3))
    assert (len(table.rows), (7, "y") in table.rows, table.version) == (300, True, before + 1)


def expanded(tmp_path: Path) -> Table:
    """A table whose log takes gigabytes from now on."""
    lake = folder(tmp_path)
    table = Table(lake, type="append-only")
    write_deltalake(f"{lake.location}/t", pa.table({"Id": pa.array([1], pa.int64()), "v": ["x"]}), mode="append")
    expand(Path(lake.location, "t"))
    return table


def test_i13_the_log_of_a_target_is_claimed_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CREATE SINK into a table whose checkpoint fills gigabytes ended three workers, one after the other."""
    monkeypatch.setattr(delta_shape.looked, "__kwdefaults__", {"memory": 300 << 20})
    table = expanded(tmp_path)
    with pytest.raises(ValueError, match="takes more than 300 MB of memory to read"):
        delta_apart.claim(table.options, RELATION)


def test_i13_the_log_of_a_sink_that_runs_is_read_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the CREATE SINK, a checkpoint of 113 kB took the worker 10 GB, also at each DROP SINK."""
    monkeypatch.setattr(delta_apart, "MEMORY", 300 << 20)
    monkeypatch.setattr(delta_apart, "SHARES", MemoryShares(800 << 20, least=400 << 20))
    sink = apart(expanded(tmp_path))
    for call in (lambda: sink.begin(Epoch(0)), lambda: sink.pending(Epoch(0))):
        with pytest.raises(RefusedTableError, match=r"more than (300|400) MB of memory"):
            call()
    with pytest.raises(OSError, match="cannot be cleaned up"):
        sink.clean_up()


def test_i13_a_log_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each DROP SINK kept a thread that answers the service until the worker ended."""
    monkeypatch.setattr(delta_apart, "_SECONDS", 2.0)
    monkeypatch.setattr(delta_apart, "_SECONDS_MAX", 2.0)
    monkeypatch.setattr(delta_apart, "_CLEANED_SECONDS", 2.0)
    table = Table(folder(tmp_path))
    os.mkfifo(tmp_path / "t/_delta_log/_last_checkpoint")
    sink = apart(table)
    with pytest.raises(RefusedTableError, match="takes more than 2 s"):
        sink.begin(Epoch(0))
    with pytest.raises(OSError, match="cannot be cleaned up"):
        sink.clean_up()


def marked(place: Path, row: int) -> None:
    """Mark a row of the only file of a table by a deletion vector of 40 bytes."""
    (log,) = place.glob("_delta_log/*0.json")
    high, low = divmod(row, 1 << 32)
    key, value = divmod(low, 1 << 16)
    bitmap = struct.pack("<IQIIIHHIH", 1681511377, 1, high, 12346, 1, key, 0, 16, value)
    features = ["deletionVectors"]
    actions: list[Any] = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            version = {"minReaderVersion": 3, "minWriterVersion": 7}
            action["protocol"] = {**version, "readerFeatures": features, "writerFeatures": features}
        if "add" in action:
            text = base64.b85encode(bitmap + bytes(-len(bitmap) % 4)).decode().translate(TO_Z85)
            vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(bitmap), "cardinality": 1}
            action["add"]["deletionVector"] = vector
    log.write_text("\n".join(map(json.dumps, actions)))


TO_Z85 = str.maketrans(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Have logs that are read in place read with little memory."""
    monkeypatch.setattr(delta_rows, "_LOGS", few := Standing(300 << 20))
    yield
    few.end()


@pytest.mark.usefixtures("logs")
def test_i13_a_log_that_is_read_in_place_is_read_within_limits(tmp_path: Path) -> None:
    """A checkpoint of 113 kB took each task 2.6 GB, and a deletion vector of 40 bytes 6.7 GB, again and again."""
    known = DeltaPlace(location=str(tmp_path / "small"))
    write_deltalake(known.location, pa.table({"id": [1, 2, 3]}))
    marked(tmp_path / "small", 1)
    snapshot = delta_rows.snapshot_of(known, 0)
    assert [kept.to_pylist()[:3] for kept in snapshot.kept.values()] == [[True, False, True]]
    write_deltalake(tmp_path / "vector", pa.table({"id": [1, 2, 3]}))
    marked(tmp_path / "vector", 7_000_000_000)
    expanded(tmp_path)
    for name, version in (("vector", 0), ("t", 1)):
        with pytest.raises(RefusedTableError, match=r"takes more than .* MB of memory to read"):
            delta_rows.snapshot_of(DeltaPlace(location=str(tmp_path / name)), version)
    assert [one.end for one in delta_rows.snapshot_of(known, 0).pieces] == [3]


def test_i13_versions_are_parsed_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a line of 4 MB was parsed, the worker ran nothing else: an INSERT took 24 s, a CREATE 103 s."""

    def never(*_: object) -> None:
        raise AssertionError("in this process")

    monkeypatch.setattr(delta_watch, "actions_of", never)
    table = Table(folder(tmp_path))
    place = DeltaPlace(location=str(tmp_path / "t"))
    write_deltalake(place.location, pa.table({"Id": pa.array([1], pa.int64()), "v": ["x"]}), mode="append")
    watch = delta_watch.Watch(place, table.relation, 0, caller="tests")
    watch.look()
    assert (watch.newest, watch.rows, watch.broken) == (2, 1, None)


def test_i13_what_a_log_says_is_told_in_short(tmp_path: Path) -> None:
    """A type of 80 MB was in each answer to a barrier, which the service took no more: the graph recovered for ever."""
    table = Table(folder(tmp_path), type="append-only")
    place = DeltaPlace(location=str(tmp_path / "t"))
    watch = delta_watch.Watch(place, table.relation, 0, caller="tests")
    log = tmp_path / "t/_delta_log/00000000000000000000.json"
    fields = [{"name": "Id", "type": "q" * (1 << 20), "nullable": True, "metadata": {}}]
    actions: list[Any] = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["schemaString"] = json.dumps({"type": "struct", "fields": fields})
    text = "\n".join(map(json.dumps, actions))
    log.write_text(text)
    watch.try_to_look()
    assert (watch.rows, watch.broken, watch.waiting) == (None, None, None), "a count that fails is none"
    (log.parent / "00000000000000000001.json").write_text(text)
    watch.try_to_look()
    assert watch.broken is not None
    assert len(watch.broken) <= TEXT_MAX
    with pytest.raises(RefusedTableError) as refused:
        delta_shape.shape_of(place)
    assert len(str(refused.value)) < 2 * TEXT_MAX


def test_i13_no_table_waits_for_the_count_of_another_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One place for all callers' counts was held for two minutes by each log that never ends."""
    monkeypatch.setattr(delta_apart, "_SECONDS", 600.0)
    for name in ("theirs", "mine"):
        write_deltalake(tmp_path / name, pa.table({"id": [1, 2, 3]}))
    os.mkfifo(tmp_path / "theirs/_delta_log/_last_checkpoint")
    relation = Table(folder(tmp_path), type="append-only").relation
    theirs, mine = (
        delta_watch.Watch(DeltaPlace(location=str(tmp_path / name)), relation, 0, caller=name)
        for name in ("theirs", "mine")
    )
    theirs.start()
    mine.start(first=True)
    try:
        until(lambda: mine.rows == 3, what="its rows are counted")
        assert theirs.rows is None
    finally:
        for one in (theirs, mine):
            one.end()
            delta_apart._STANDING.of(f"{one.caller} looks").end()  # pyright: ignore[reportPrivateUsage]
