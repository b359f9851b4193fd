"""Arrow and Parquet bodies: what the column keeps exactly is printed, everything else is refused by name."""

import io
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from service.columnar.reading import SLICE_BYTES, SLICE_ROWS, ArrowRows, opened_parquet, opened_stream
from service.domain.errors import Invalid
from service.protocol.columns import Column, ColumnType


def column(kind: str, name: str = "a") -> Column:
    return Column(name=name, type=ColumnType.parse(kind))


def stream_of(table: "pa.Table", directory: Path, name: str = "rows.arrow") -> ArrowRows:
    path = directory / name
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return opened_stream(path)


def printed(values: "pa.Array[Any]", kind: str, directory: Path) -> list[str]:
    rows = stream_of(pa.table({"a": values}), directory)
    return b"".join(rows.csv_of([column(kind)])).decode().splitlines()


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        (pa.array([True, None]), "boolean", ['"true"', ""]),
        (pa.array([1, None], pa.int64()), "smallint", ['"1"', ""]),
        (pa.array([2**63 - 1], pa.uint64()), "bigint", [f'"{2**63 - 1}"']),
        (pa.array([0.1], pa.float32()), "real", ['"0.1"']),
        (pa.array([0.1, float("nan"), float("-inf")]), "double precision", ['"0.1"', '"nan"', '"-inf"']),
        (pa.array([3], pa.int32()), "double precision", ['"3"']),
        (pa.array([Decimal("1.50")]), "numeric(12,4)", ['"1.5000"']),
        (pa.array([7], pa.int64()), "numeric(5,2)", ['"7"']),
        (pa.array(["a", "", None, 'q"']), "text", ['"a"', '""', "", '"q"""']),
        (pa.array(["x"], pa.large_string()), "text", ['"x"']),
        (pa.array(["x", "y", "x"]).dictionary_encode(), "text", ['"x"', '"y"', '"x"']),
        (pa.array([b"\x00\xff"]), "bytea", ['"\\x00ff"']),
        (pa.array(["2024-02-29"]), "date", ['"2024-02-29"']),
        (pa.array([19782], pa.date32()), "date", ['"2024-02-29"']),
        (pa.array([1], pa.timestamp("s")), "timestamp", ['"1970-01-01 00:00:01.000000"']),
        (pa.array([1], pa.timestamp("ms", "Europe/Paris")), "timestamptz", ['"1970-01-01 00:00:00.001000Z"']),
        (pa.array([1_000], pa.time64("ns")), "time", ['"00:00:00.000001"']),
        (pa.array([bytes(range(16))], pa.binary(16)), "uuid", ['"00010203-0405-0607-0809-0a0b0c0d0e0f"']),
        (pa.array([[1, None], None, []], pa.list_(pa.int64())), "integer[]", ['"{""1"",NULL}"', "", '"{}"']),
        (pa.array([None, None], pa.null()), "jsonb", ["", ""]),
    ],
)
def test_what_is_kept_exactly_is_printed_as_postgres_reads_it(
    values: "pa.Array[Any]", kind: str, texts: list[str], tmp_path: Path
) -> None:
    assert printed(values, kind, tmp_path) == texts


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        (pa.array([1, 40_000]), "smallint", 'row 2, column "a": '),
        (pa.array([0, 2**53 + 1]), "double precision", 'row 2, column "a": '),
        (pa.array([Decimal("1.00"), Decimal("1.25")]), "numeric(5,1)", 'row 2, column "a": '),
        (pa.array([0, 1], pa.timestamp("ns")), "timestamp", 'row 2, column "a": '),
        (pa.array([1.0]), "bigint", 'column "a": bigint is expected, not double'),
        (pa.array([1.0]), "numeric(5,2)", 'column "a": numeric(5,2) is expected, not double'),
        (pa.array([1.0]), "real", 'column "a": real is expected, not double'),
        (pa.array([1]), "text", 'column "a": text is expected, not int64'),
        (pa.array([1]), "boolean", 'column "a": boolean is expected, not int64'),
        (pa.array([True]), "integer", 'column "a": integer is expected, not bool'),
        (pa.array([0], pa.timestamp("us", "UTC")), "timestamp", 'column "a": timestamp is expected'),
        (pa.array([1], pa.duration("s")), "interval", 'column "a": interval is expected'),
        (pa.array([{"x": 1}]), "jsonb", 'column "a": jsonb is expected'),
        (pa.array([1]), "integer[]", 'column "a": integer[] is expected, not int64'),
        (pa.array([[[1]]]), "integer[]", 'column "a": integer is expected'),
    ],
)
def test_what_would_be_altered_is_refused(values: "pa.Array[Any]", kind: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        printed(values, kind, tmp_path)
    assert refused.value.message.startswith(said)


def test_rows_are_counted_over_slices_and_batches(tmp_path: Path) -> None:
    bad = 2 * SLICE_ROWS + 5
    values = pa.array([0] * (bad - 1) + [99_999] + [0] * 10)
    for rows in (
        stream_of(pa.table({"a": values}), tmp_path),
        stream_of(pa.concat_tables([pa.table({"a": values[:100]}), pa.table({"a": values[100:]})]), tmp_path, "b"),
    ):
        with pytest.raises(Invalid, match=f'row {bad}, column "a"'):
            list(rows.csv_of([column("smallint")]))


def test_columns_are_taken_by_name(tmp_path: Path) -> None:
    rows = stream_of(pa.table({"b": ["x"], "a": [1]}), tmp_path)
    assert rows.names == ("b", "a")
    assert b"".join(rows.csv_of([column("bigint"), column("text", "b")])) == b'"1","x"\n'


def test_parquet_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pa_parquet.write_table(pa.table({"a": list(range(3 * SLICE_ROWS))}), path)
    pieces = list(opened_parquet(path).csv_of([column("bigint")]))
    assert len(pieces) == 3
    assert b"".join(pieces).count(b"\n") == 3 * SLICE_ROWS


@pytest.mark.parametrize("open_file", [opened_stream, opened_parquet])
@pytest.mark.parametrize("body", [b"", b"PAR1", b"not at all", b"\xff" * 4096])
def test_a_file_that_is_something_else_is_refused(open_file: Any, body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(body)
    with pytest.raises(Invalid, match="cannot be read") as refused:
        list(open_file(path).csv_of([]))
    assert str(tmp_path) not in refused.value.message


def test_a_file_that_breaks_off_is_refused(tmp_path: Path) -> None:
    sink = io.BytesIO()
    table = pa.table({"a": list(range(1000))})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    path = tmp_path / "rows"
    path.write_bytes(sink.getvalue()[:-2000])
    with pytest.raises(Invalid, match="cannot be read"):
        list(opened_stream(path).csv_of([column("bigint")]))


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    odd = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    with pytest.raises(Invalid, match="cannot be read"):
        printed(odd, "text", tmp_path)


def test_offsets_that_point_outside_are_refused(tmp_path: Path) -> None:
    sink = io.BytesIO()
    table = pa.table({"a": ["ab", "cd", "ef"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    good, bad = struct.pack("<4i", 0, 2, 4, 6), struct.pack("<4i", 0, 1 << 30, 4, 6)
    assert good in sink.getvalue()
    path = tmp_path / "rows"
    path.write_bytes(sink.getvalue().replace(good, bad))
    with pytest.raises(Invalid, match="cannot be read"):
        list(opened_stream(path).csv_of([column("text")]))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int8()), pa.array(["x" * (1 << 20)])), "text"),
        (pa.RunEndEncodedArray.from_arrays(pa.array([64], pa.int32()), pa.array(["x" * (1 << 20)])), "text"),
        (
            pa.ListArray.from_arrays(
                pa.array(range(65), pa.int32()),
                pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int8()), pa.array(["x" * (1 << 20)])),
            ),
            "text[]",
        ),
        (pa.array(["x" * (1 << 20)] * 64, pa.string_view()), "text"),
    ],
    ids=["dictionary", "run ends", "lists of a dictionary", "views"],
)
def test_s9_fewer_rows_are_converted_at_a_time_where_they_stand_for_much(
    values: "pa.Array[Any]", kind: str, tmp_path: Path
) -> None:
    rows = stream_of(pa.table({"a": values}), tmp_path)
    chunks = [len(chunk) for chunk in rows.csv_of([column(kind)])]
    assert sum(chunks) >= 64 << 20
    assert max(chunks) <= SLICE_BYTES + (1 << 20)
