"""The lists of functions in `docs/sql.md`, from the one table: `python -m tests.support.functions_page` writes them."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Final

from service.sql.expressions.allowed import TYPES
from service.sql.expressions.functions import CALLABLE, FUNCTIONS, Function, Kind

PAGE: Final = Path(__file__).parents[2] / "docs" / "sql.md"
_WIDTH: Final = 118
_CALLED: Final = [row for row in FUNCTIONS.values() if row.name in CALLABLE and row.kind is not Kind.SYNTAX]


def page(text: str) -> str:
    """Return the page with its lists as the table has them. Each list stands between two comments with its name."""
    lists = {
        "callable": _table("for", "functions", _by_topic(_CALLED)),
        "types": _table("casts to", "arrays of these as well", [("types", sorted(TYPES))]),
        "refused": _table("refused in a view", "functions", _refused()),
        "spark": _table("for", "functions that Spark computes", _by_topic(row for row in _CALLED if row.by_spark)),
    }
    for name, table in lists.items():
        text = re.sub(rf"(<!-- {name} -->\n).*?(?=<!-- end -->)", rf"\1\n{table}\n\n", text, flags=re.DOTALL)
    return text


def _by_topic(rows: Iterable[Function]) -> Iterator[tuple[str, list[str]]]:
    for topic, members in groupby(rows, lambda row: row.topic):
        yield topic, sorted(one.name for one in members)


def _refused() -> Iterator[tuple[str, list[str]]]:
    shown = {Kind.CLOCK: "the clock", Kind.RANDOM: "random values", Kind.ROWS: "several rows"}
    for kind, topic in shown.items():
        yield topic, sorted(row.name for row in _CALLED if row.kind is kind)


def _table(head: str, other: str, rows: Iterable[tuple[str, list[str]]]) -> str:
    lines = [f"| {head} | {other} |", "|---|---|"]
    for topic, names in rows:
        for at, line in enumerate(wrap(" ".join(f"`{name}`" for name in names), _WIDTH - len(topic) - 7)):
            lines.append(f"| {'...' if at else topic} | {line} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
