"""Cutting a text into statements."""

import pytest

from service.cli.output import marked
from service.cli.statements import is_complete, split
from service.domain.words import span


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (" ; ;; ", []),
        ("-- nothing\n; /* ; */", []),
        ("select 1", ["select 1"]),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("select ';', \";\", 'it''s;'", ["select ';', \";\", 'it''s;'"]),
        ("select $$;$$; select $a$;$$;$a$", ["select $$;$$", "select $a$;$$;$a$"]),
        ("select 1 -- ;\n+ 2; select 3", ["select 1 -- ;\n+ 2", "select 3"]),
        ("select /* ; */ 1", ["select /* ; */ 1"]),
        ("select 'unclosed; still", ["select 'unclosed", "still"]),
    ],
)
def test_semicolons_end_statements_where_they_stand_free(text: str, statements: list[str]) -> None:
    assert list(split(text)) == statements


@pytest.mark.parametrize(
    ("text", "complete"),
    [("select 1", False), ("select 1;", True), ("select 1; -- x", True), ("select ';'", False), ("", False)],
)
def test_typing_goes_on_until_a_semicolon(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


@pytest.mark.parametrize(
    ("sql", "position", "line", "mark"),
    [
        ("select x", 8, "select x", "       ^"),
        ("a\n\tb c\nd", 6, "\tb c", "\t  ^"),
        ("ab", 99, "ab", "  ^"),
        ("", 1, "", "^"),
    ],
)
def test_the_caret_stands_under_the_place(sql: str, position: int, line: str, mark: str) -> None:
    assert marked(sql, position) == (line, mark)


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (0.4, "0:00"), (61, "1:01"), (3661, "1:01:01")])
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert span(seconds) == text
