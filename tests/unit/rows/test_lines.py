"""On which line of a CSV body a row begins."""

from pathlib import Path

import pytest

from service.operations.rows.csv_text import line_of


@pytest.mark.parametrize(
    ("body", "row", "line"),
    [
        (b"a,b\n1,2\n3,4\n", 2, 3),
        (b'a,b\n1,"x\ny\nz"\n3,4\n', 2, 5),
        (b'"a\nb",c\r\n1,"x\r\ny"\r\n3,4\r\n', 2, 5),
        (b"a\n\xff\n2\n", 2, 3),
        (b"a\n1", 1, 2),
    ],
)
def test_u10_a_bad_row_has_the_line_that_an_editor_shows(tmp_path: Path, body: bytes, row: int, line: int) -> None:
    (tmp_path / "body").write_bytes(body)
    assert line_of(tmp_path / "body", row) == line
