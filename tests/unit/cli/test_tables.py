"""The layout of rows."""

import pytest

from service.cli.tables import expanded, table

COLUMNS = [("id", "bigint"), ("name", "text"), ("on", "boolean")]
ROWS = [[1, "a\nb", True], [100000, None, False], [2, {"a": 1}, None], [3, "日本", True]]


def test_f8_a_table_looks_as_the_readme_shows() -> None:
    assert list(table(COLUMNS, ROWS)) == [
        "    id ┃ name     ┃ on",
        "━━━━━━━╇━━━━━━━━━━╇━━━━━",
        "     1 │ a        │ t",
        "       │ b        │",
        "100000 │ NULL     │ f",
        '     2 │ {"a": 1} │ NULL',
        "     3 │ 日本     │ t",
    ]
    assert list(table([("a", "bigint")], [])) == ["a", "━"]


def test_f8_cells_are_folded_to_the_width_of_a_screen() -> None:
    wide = list(table(COLUMNS, [[7, "x" * 20, True], [8, "日" * 9, None]], width=20))
    assert wide == [
        "id ┃ name     ┃ on",
        "━━━╇━━━━━━━━━━╇━━━━━",
        " 7 │ xxxxxxxx │ t",
        "   │ xxxxxxxx │",
        "   │ xxxx     │",
        " 8 │ 日日日日 │ NULL",
        "   │ 日日日日 │",
        "   │ 日       │",
    ]


@pytest.mark.parametrize(
    ("value", "shown"), [("a\x1b[31mb", "a\\x1B[31mb"), ("a\rb", "a\\x0Db"), ("a\tb", "a       b")]
)
def test_f8_a_value_cannot_steer_the_terminal(value: str, shown: str) -> None:
    assert list(table([("a", "text")], [[value]]))[2] == shown
    assert list(expanded([("a", "text")], [[value]]))[1] == f"a | {shown}"


def test_f8_colours_do_not_change_the_widths() -> None:
    lines = list(table([("a", "text"), ("b", "bigint")], [[None, 1]], colours=True))
    assert lines[0] == "\x1b[1ma\x1b[0m    ┃ \x1b[1mb\x1b[0m"
    assert lines[2] == "\x1b[2mNULL\x1b[0m │ 1"


def test_f8_rows_one_value_a_line() -> None:
    assert list(expanded([("id", "bigint"), ("n", "text")], [[1, None], [2, True]])) == [
        "-[ row 1 ]",
        "id | 1",
        "n  | NULL",
        "-[ row 2 ]",
        "id | 2",
        "n  | t",
    ]
