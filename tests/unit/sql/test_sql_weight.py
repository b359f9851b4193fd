"""Which texts may be parsed on the event loop: an estimate in linear time, against what sqlglot really does."""

from contextlib import suppress

import pytest
from sqlglot.parser import Parser

from service.domain.errors import Invalid
from service.sql.parse import parse
from service.sql.text.weight import is_light

OPENED = [
    ("date(", ")"),
    ("timestamp(", ")"),
    ("varchar(", ")"),
    ("double precision(", ")"),
    ("interval(", ")"),
    ("array[", "]"),
    ("int[", "]"),
    ("null[", "]"),
    ("a::int[", "]"),
    ("cast(a as decimal(", "))"),
    ("(bigint ", ")"),
    ("(select oid ", ")"),
    ("join a ", ""),
    ("join 'a' ", ""),
]
"""Every shape whose time doubles with its depth that a search over all of sqlglot's keywords found."""
STEPS_MAX = 60_000
"""Tokens that sqlglot may look at for a light text: some 40 ms."""


def _steps(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    steps, advance = 0, Parser._advance  # pyright: ignore[reportPrivateUsage] - what it does for each token

    def counted(self: Parser, times: int = 1) -> None:
        nonlocal steps
        steps += 1
        advance(self, times)

    with monkeypatch.context() as patch:
        patch.setattr(Parser, "_advance", counted)
        with suppress(Invalid):
            parse(text)
    return steps


@pytest.mark.parametrize(("opening", "closing"), OPENED)
def test_s2_nested_text_is_light_only_while_it_is_cheap(
    opening: str, closing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(depth: int) -> str:
        return "select " + opening * depth + "1" + closing * depth

    assert is_light(text(2))
    assert not is_light(text(17))
    deepest = max(depth for depth in range(1, 17) if is_light(text(depth)))
    assert _steps(text(deepest), monkeypatch) < STEPS_MAX


def test_s2_a_light_text_of_many_nests_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = "date(" * 5 + "1" + ")" * 5
    many = next(n for n in range(1, 100) if not is_light("select " + ", ".join([nested] * n))) - 1
    assert many >= 1
    assert _steps("select " + ", ".join([nested] * many), monkeypatch) < STEPS_MAX


def test_statements_of_everyday_are_light() -> None:
    columns = ", ".join(f"column_{number} varchar(20) not null" for number in range(20))
    assert is_light(f"create table t (id bigint primary key, {columns})")
    assert is_light("select a, count(*) from t where b in (1, 2, 3) and c > (select max(c) from u) group by a")
    assert is_light("select t.a from t join u on t.id = u.id where coalesce(t.b, u.b, abs(u.c)) > 3")
    assert not is_light("select " + "1 + " * 400 + "1")
