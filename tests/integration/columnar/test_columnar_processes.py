"""Arrow, Parquet and NDJSON bodies are read apart, whatever they unfold to (I8, I13)."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from service.columnar import process
from service.columnar.child import MESSAGE_MAX
from service.columnar.process import ColumnarProcesses
from service.domain.errors import Invalid, Unavailable
from service.ports.columnar import FileForm
from service.protocol.columns import Column, ColumnType
from service.turns import CALLER

MEMORY = 512 << 20


def column(kind: str) -> Column:
    return Column(name="a", type=ColumnType.parse(kind))


async def printed(path: Path, kind: str, form: FileForm, *, memory: int = MEMORY) -> int:
    """Return how many bytes of CSV a body is."""
    async with ColumnarProcesses(memory=memory).opened(path, form) as rows:
        assert rows.names == (() if form == "ndjson" else ("a",))
        return sum([len(chunk) async for chunk in rows.csv_of([column(kind)])])


def arrow(table: "pa.Table", path: Path) -> Path:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("form", ["parquet", "arrow"])
async def test_s9_a_value_that_many_rows_have_takes_its_memory_once(tmp_path: Path, form: FileForm) -> None:
    """One text of 512 KiB in 2,048 rows: 1 GiB, twice the memory, and a few kilobytes of a body."""
    path = tmp_path / "body"
    one = pa.array(["x" * (512 << 10)])
    table = pa.table({"a": pa.DictionaryArray.from_arrays(pa.array([0] * 2_048, pa.int32()), one)})
    if form == "parquet":
        pa_parquet.write_table(table, path, compression="zstd")
    else:
        arrow(table, path)
    assert path.stat().st_size < 64 << 10
    assert await printed(path, "text", form) == 2_048 * ((512 << 10) + 3)


async def test_s9_a_batch_that_unfolds_to_too_much_is_refused(tmp_path: Path) -> None:
    """640 MiB of nothing."""
    path = arrow(pa.table({"a": pa.nulls(80 << 20, pa.int64())}), tmp_path / "body")
    assert path.stat().st_size < 1 << 20
    with pytest.raises(Invalid, match="too much memory"):
        await printed(path, "bigint", "arrow")


async def test_a_body_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(Invalid, match="cannot be read"):
        await printed(tmp_path / "body", "text", "parquet")


async def test_what_is_not_read_to_its_end_ends_with_its_reader(tmp_path: Path) -> None:
    """And its pipe is closed, in which more waits than is read ahead."""
    path = arrow(pa.table({"a": list(range(100_000))}), tmp_path / "body")
    async with ColumnarProcesses().opened(path, "arrow") as rows:
        assert isinstance(rows, process.ProcessRows)
        assert await anext(rows.csv_of([column("bigint")]))
        output: Any = rows.process.stdout
        while not output._paused:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)  # noqa: TID251 - the process goes on
    assert rows.process.returncode is not None
    assert output.at_eof()


async def test_s9_a_row_of_many_bytes_is_handed_over_in_parts(tmp_path: Path) -> None:
    path = arrow(pa.table({"a": ["x" * (24 << 20)]}), tmp_path / "body")
    async with ColumnarProcesses().opened(path, "arrow") as rows:
        sizes = [len(chunk) async for chunk in rows.csv_of([column("text")])]
    assert sum(sizes) == (24 << 20) + 3
    assert max(sizes) <= MESSAGE_MAX


async def test_s9_only_so_many_bodies_are_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_TURN_SECONDS", 0.01)
    path = arrow(pa.table({"a": [1]}), tmp_path / "body")
    columnar = ColumnarProcesses(processes=1)
    async with columnar.opened(path, "arrow"):
        with pytest.raises(Unavailable, match="1 Arrow, Parquet and NDJSON bodies of this caller run"):
            async with columnar.opened(path, "arrow"):
                pass
    async with columnar.opened(path, "arrow") as rows:
        assert rows.names == ("a",)


async def test_i13_bodies_of_one_caller_leave_a_process_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two loads of one caller kept both processes, and all other loads were refused meanwhile."""
    monkeypatch.setattr(process, "_TURN_SECONDS", 0.01)
    path = arrow(pa.table({"a": [1]}), tmp_path / "body")
    columnar = ColumnarProcesses()
    CALLER.set("one")
    async with columnar.opened(path, "arrow"), columnar.opened(path, "arrow"):
        with pytest.raises(Unavailable, match="2 Arrow, Parquet and NDJSON bodies of this caller run"):
            async with columnar.opened(path, "arrow"):
                pass
        CALLER.set("other")
        async with columnar.opened(path, "arrow") as rows:
            assert rows.names == ("a",)


async def test_a_body_that_was_read_gives_its_turn_away(tmp_path: Path) -> None:
    """Its rows may wait for epochs as long as they like."""
    path = arrow(pa.table({"a": [1]}), tmp_path / "body")
    columnar = ColumnarProcesses(processes=1)
    async with columnar.opened(path, "arrow") as rows:
        assert [chunk async for chunk in rows.csv_of([column("bigint")])] == [b'"1"\n']
        async with columnar.opened(path, "arrow") as others:
            assert [chunk async for chunk in others.csv_of([column("bigint")])] == [b'"1"\n']


async def test_a_line_of_many_values_takes_no_memory_of_the_service(tmp_path: Path) -> None:
    """16 MB of empty lists are some hundred once they are read."""
    (tmp_path / "body").write_bytes(b'{"a": [' + b"[]," * 5_000_000 + b"[]]}")
    with pytest.raises(Invalid, match="too much memory"):
        await printed(tmp_path / "body", "jsonb", "ndjson", memory=256 << 20)


async def test_a_small_ndjson_body_waits_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of gigabytes refused every row that somebody loaded as NDJSON meanwhile."""
    monkeypatch.setattr(process, "_TURN_SECONDS", 0.01)
    (tmp_path / "small").write_bytes(b'{"a": 1}\n' * 1_000)
    (tmp_path / "large").write_bytes(b'{"a": 1}\n' * 100_000)
    bodies = ColumnarProcesses(memory=MEMORY, processes=1)
    async with bodies.opened(tmp_path / "large", "ndjson"):
        async with bodies.opened(tmp_path / "small", "ndjson") as rows:
            assert b"".join([chunk async for chunk in rows.csv_of([column("bigint")])]) == b'"1"\n' * 1_000
        with pytest.raises(Unavailable):
            async with bodies.opened(tmp_path / "large", "ndjson"):
                pass


async def test_a_small_ndjson_body_names_the_row_at_fault(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b'{"a": 1}\n{"a": true}\n')
    with pytest.raises(Invalid, match='row 2, column "a"'):
        await printed(tmp_path / "body", "bigint", "ndjson")


async def test_a_small_ndjson_body_of_many_fields_is_read_by_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13: 87,000 objects of two bytes are 130 million fields of a table with 1,500 columns."""
    monkeypatch.setattr(process, "_TURN_SECONDS", 0.01)
    (tmp_path / "body").write_bytes(b"{}\n" * 1_000)
    columns = [Column(name=f"c{number}", type=ColumnType.parse("bigint")) for number in range(1_500)]
    bodies = ColumnarProcesses(memory=MEMORY, processes=1)
    path = arrow(pa.table({"a": [1]}), tmp_path / "other")
    async with bodies.opened(path, "arrow"), bodies.opened(tmp_path / "body", "ndjson") as rows:
        with pytest.raises(Unavailable):
            await anext(rows.csv_of(columns))
    with pytest.raises(Invalid, match='row 1: columns missing: "c0"'):
        async with bodies.opened(tmp_path / "body", "ndjson") as rows:
            await anext(rows.csv_of(columns))
