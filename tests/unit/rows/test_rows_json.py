"""NDJSON bodies: digits are kept as written, and what does not fit is named by row and column."""

import gzip
from pathlib import Path

import pytest

from service.columnar import rows_json
from service.columnar.rows_json import JsonRows
from service.domain.errors import Invalid
from service.protocol.columns import Column, ColumnType


def columns(**kinds: str) -> list[Column]:
    return [Column(name=name, type=ColumnType.parse(kind)) for name, kind in kinds.items()]


def printed(path: Path, body: bytes, **kinds: str) -> str:
    (path / "body").write_bytes(body)
    return b"".join(JsonRows(path / "body").csv_of(columns(**kinds))).decode()


@pytest.mark.parametrize("portion", [1, 20, 1000])
def test_rows_become_csv_in_the_order_of_the_columns(
    portion: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_json, "_PORTION_BYTES", portion)
    body = b'{"b": "x", "a": 1}\n\n  \r\n{"a": null, "b": null}\r\n{"a": -2, "b": ""}'
    assert printed(tmp_path, body, a="bigint", b="text") == '"1","x"\n,\n"-2",""\n'


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("numeric(38,10)", "12345678901234567890.0123456789", "12345678901234567890.0123456789"),
        ("numeric(38,10)", "1E+2", "1E+2"),
        ("double precision", "1e-400", "1e-400"),
        ("double precision", '"NaN"', "NaN"),
        ("bigint", "9" * 5000, "9" * 5000),
        ("boolean", "true", "true"),
        ("boolean", '"f"', "f"),
        ("date", '"2024-02-29"', "2024-02-29"),
        ("bytea", '"\\\\x00ff"', "\\x00ff"),
        ("jsonb", '{"a": [1.10, null, "x\\"", {}], "b": false}', '{"a":[1.10,null,"x\\"",{}],"b":false}'),
        ("jsonb", '"text"', '"text"'),
        ("jsonb", "1.10", "1.10"),
        ("integer[]", "[1, null, 3]", '{"1",NULL,"3"}'),
        ("text[]", '["a,b", "", "\\""]', '{"a,b","","\\""}'),
    ],
)
def test_values_keep_what_was_written(kind: str, value: str, text: str, tmp_path: Path) -> None:
    quoted = '"' + text.replace('"', '""') + '"\n'
    assert printed(tmp_path, f'{{"a": {value}}}'.encode(), a=kind) == quoted


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("text", "1", "text is expected, not a number"),
        ("text", "true", "text is expected, not a boolean"),
        ("text", "{}", "text is expected, not an object"),
        ("text", "[]", "text is expected, not a list"),
        ("date", "20240229", "date is expected, not a number"),
        ("boolean", "1", "boolean is expected, not a number"),
        ("bigint", "true", "bigint is expected, not a boolean"),
        ("integer[]", "1", "integer[] is expected, not a number"),
        ("integer[]", "[[1]]", "integer is expected, not a list"),
        ("text", '"\\ud800"', "surrogates"),
    ],
)
def test_what_does_not_fit_is_named_by_row_and_column(kind: str, value: str, said: str, tmp_path: Path) -> None:
    body = f'{{"a": null}}\n\n{{"a": {value}}}\n'.encode()
    with pytest.raises(Invalid) as refused:
        printed(tmp_path, body, a=kind)
    assert refused.value.message.startswith('row 2, column "a": ')
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"a": 1', "row 2: "),
        (b"[1]", "row 2: an object is expected, not a list"),
        (b"1", "row 2: an object is expected, not a number"),
        (b'{"z": 1}', 'row 2: unknown column "z"'),
        (b'{"a": 1, "a": 2}', 'row 2: "a" is given twice'),
        (b'{"a": NaN}', "row 2: NaN is not JSON"),
        (b'{"a": "\xff"}', "row 2: "),
        (b'{"a": ' + b"[" * 100_000, "row 2: "),
    ],
)
def test_a_line_that_cannot_be_read_is_named_by_its_row(line: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        printed(tmp_path, b'{"a": 1}\n' + line, a="bigint")
    assert refused.value.message.startswith(said)


def test_a_line_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_json, "LINE_BYTES_MAX", 12)
    assert printed(tmp_path, b'{"a": 12345}\n' * 3, a="bigint") == '"12345"\n' * 3
    with pytest.raises(Invalid, match="row 2: the line is longer than 12 bytes"):
        printed(tmp_path, b'{"a": 12345}\n{"a": 123456}', a="bigint")


def test_of_many_unknown_columns_one_is_named(tmp_path: Path) -> None:
    body = b"{" + b",".join(b'"%d": 1' % number for number in range(100_000)) + b"}"
    with pytest.raises(Invalid) as refused:
        printed(tmp_path, body, a="bigint")
    assert refused.value.message == 'row 1: unknown column "0"'


def test_u4_a_row_with_some_of_the_columns_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        printed(tmp_path, b'{"a": 1, "b": "x"}\n{"a": 2}\n', a="bigint", b="text")
    assert refused.value.message.startswith('row 2: columns missing: "b". Every row gives every column')
    assert "?columns=a,b" in refused.value.message


def test_u10_a_packed_body_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="the body is packed: send it with Content-Encoding: gzip"):
        printed(tmp_path, gzip.compress(b'{"a": 1}'), a="bigint")
