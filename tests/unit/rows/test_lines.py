"""On which line of a CSV body a row begins."""

import tracemalloc
from pathlib import Path

import pytest

from service.operations.rows import csv_text
from service.operations.rows.csv_text import line_of


@pytest.mark.parametrize(
    ("body", "row", "line"),
    [
        (b"a,b\n1,2\n3,4\n", 2, 3),
        (b'a,b\n1,"x\ny\nz"\n3,4\n', 2, 5),
        (b'"a\nb",c\r\n1,"x\r\ny"\r\n3,4\r\n', 2, 5),
        (b"a\n\xff\n2\n", 2, 3),
        (b"a\n1", 1, 2),
        (b'a\n"' + b"\n" * 200_000 + b'"\n2\n', 2, 200_003),
        (b'a\nx"y\nz"\n2\n', 2, 4),
        (b"a\n1\n", 9, None),
    ],
)
def test_u10_a_bad_row_has_the_line_that_an_editor_shows(
    tmp_path: Path, body: bytes, row: int, line: int | None
) -> None:
    (tmp_path / "body").write_bytes(body)
    assert line_of(tmp_path / "body", row) == line


def test_i13_a_row_of_millions_of_fields_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's reader, for which a quote in a field means nothing, kept them: 450 MB took 9 GB."""
    (tmp_path / "body").write_bytes(b'a\na","\nb' + b'\na","' * 500_000 + b"\n2\n")
    tracemalloc.start()
    assert line_of(tmp_path / "body", 2) == 3
    assert line_of(tmp_path / "body", 500_003) == 500_004
    assert tracemalloc.get_traced_memory()[1] < 3 << 20
    tracemalloc.stop()
    monkeypatch.setattr(csv_text, "LINE_BYTES_MAX", 128 << 10)
    assert line_of(tmp_path / "body", 500_003) is None
