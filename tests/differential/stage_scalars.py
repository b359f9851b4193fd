"""Random expressions and conditions over the columns of a FROM, by the kind of their values.

Kinds are those of `stage_values`, and: `number`, a numeric whose digits follow from its computation, so that equal ones
may have different texts; `approx`, a float that depends on the order of rows in Postgres; `list`, an array. The last
two are only given out, never compared.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

from tests.differential.stage_values import KINDS, VALUES

SAFE: Final = ("big", "int", "num", "dbl", "txt", "bool", "date", "ts", "flt")
"""Kinds whose equal values may stand for each other."""
NUMBERS: Final = ("big", "int", "num", "dbl", "flt")


_PLACE: Final = re.compile(r"\{([^{}]+)\}")

COMPUTED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "big": (
            "({big} + {int})", "abs({big})", "({big} % 3)", "length({txt})::bigint", "{int}::bigint", "(- {big})",
            "({date} - date '2024-01-01')::bigint", "extract(month from {ts})::bigint",
        ),
        "int": (
            "({int} + 1)", "({int} - {int})", "({int} / 2)", "length({txt})", "{bool}::integer", "strpos({txt}, 'a')",
        ),
        "num": ("({num} + {num})", "abs({num})", "(- {num})", "{int}::numeric(10,2)"),
        "dbl": ("({dbl} * 2)", "({dbl} + {dbl})", "{int}::double precision"),
        "flt": ("({flt} * 2)", "abs({flt})", "({flt} + 0.1)"),
        "txt": (
            "({txt} || {txt})", "lower({txt})", "upper({txt})", "substr({txt}, 1, 1)", "left({txt}, 1)", "{int}::text",
            "{date}::text", "replace({txt}, 'a', 'b')", "{num}::text", "to_char({ts}, 'YYYY-MM')", "{bool}::text",
        ),
        "bool": ("({if})",),
        "date": ("({date} + 1)", "{ts}::date", "({date} - {int})"),
        "ts": ("({ts} + interval '1 day')", "date_trunc('day', {ts})", "{date}::timestamp"),
        "number": ("({num} * 1.5)", "({num} / 3)", "({int} * 0.25)"),
        "approx": ("sqrt(abs({int}))",),
        "list": ("array[{int}, 1]",),
    }
)  # fmt: skip
"""Expressions of a kind. `{big}` stands for an expression of that kind, `{if}` for a condition."""
CHOSEN: Final = (
    "coalesce({it}, {it})", "coalesce({it}, {literal})", "case when {if} then {it} else {it} end",
    "case when {if} then {it} end", "nullif({it}, {literal})", "greatest({it}, {it})", "least({it}, {literal})",
)  # fmt: skip
"""Expressions of any kind, which is that of `{it}`."""
CONDITIONS: Final = (
    "{it} {<} {other}", "{it} {<} {other}", "{it} {<} {other}", "{it} {<} {literal}", "{it} is null",
    "{it} is not null", "{it} is not null", "{it} in ({literal}, {literal})", "{it} not in ({literal})",
    "{it} not in ({literal}, null)", "{it} in ({literal}, {it}, null)", "{it} between {it} and {literal}",
    "{it} is distinct from {it}", "{it} is not distinct from {it}", "{txt} like 'a%'", "{txt} not like '%b'",
    "{txt} ilike 'A%'", "{txt} like '_'", "{bool}", "{bool} is true", "{bool} is not false", "not {bool}",
)  # fmt: skip
"""Conditions. `{other}` can be compared with `{it}` by `{<}`."""


@dataclass(frozen=True)
class Col:
    """A column as an expression names it."""

    sql: str
    kind: str


class Scalars:
    """Expressions from a random source."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def chance(self, share: float) -> bool:
        """Return True in a share of calls."""
        return self.random.random() < share

    def literal(self, kind: str) -> str:
        """Return a typed constant."""
        return f"{self.random.choice(VALUES[kind])}::{KINDS[kind]}"

    def kind_of(self, cols: Sequence[Col], kinds: Sequence[str] = SAFE) -> str:
        """Return the kind of some column, if one is of these kinds."""
        found = [one.kind for one in cols if one.kind in kinds]
        return self.random.choice(found) if found else self.random.choice(list(kinds))

    def value(self, kind: str, cols: Sequence[Col], depth: int = 2) -> str:
        """Return an expression of a kind."""
        own = [one.sql for one in cols if one.kind == kind]
        if own and (depth == 0 or self.chance(0.7)):
            return self.random.choice(own)
        if depth == 0 or kind not in KINDS or self.chance(0.1):
            return self.literal(kind) if kind in KINDS else self.computed(kind, cols, 0)
        return self.computed(kind, cols, depth - 1)

    def computed(self, kind: str, cols: Sequence[Col], depth: int) -> str:
        """Return an expression of a kind that computes something."""
        forms = CHOSEN if kind in KINDS and self.chance(0.3) else COMPUTED[kind]
        return self.filled(self.random.choice(forms), kind, cols, depth)

    def condition(self, cols: Sequence[Col], depth: int = 1) -> str:
        """Return a condition."""
        if depth and self.chance(0.3):
            word = self.random.choice(("and", "or", "or"))
            return f"({self.condition(cols, depth - 1)} {word} {self.condition(cols, depth - 1)})"
        if depth and self.chance(0.1):
            return f"not ({self.condition(cols, depth - 1)})"
        return self.filled(self.random.choice(CONDITIONS), self.kind_of(cols), cols, depth)

    def filled(self, form: str, kind: str, cols: Sequence[Col], depth: int) -> str:
        """Return a form with expressions in its places. Places with a `!` have the same expression."""
        same: list[str] = []

        def filling(place: re.Match[str]) -> str:
            match place[1]:
                case "it":
                    return self.value(kind, cols, depth)
                case name if name.endswith("!"):
                    same.append(same[0] if same else self.value(kind if name == "it!" else name[:-1], cols, depth))
                    return same[0]
                case "literal":
                    return self.literal(kind)
                case "if":
                    return self.condition(cols, 0)
                case "<":
                    return self.compared()
                case "other":
                    return self.other(kind, cols, depth)
                case other:
                    return self.value(other, cols, depth)

        return _PLACE.sub(filling, form)

    def other(self, kind: str, cols: Sequence[Col], depth: int) -> str:
        """Return an expression that can be compared with one of a kind."""
        if kind in NUMBERS and self.chance(0.3):
            return self.value(self.random.choice(NUMBERS), cols, 0)
        return self.value(kind, cols, depth)

    def compared(self) -> str:
        """Return a comparison."""
        return self.random.choice(("=", "=", "<", "<=", ">", ">=", "<>", "<>"))

    def one_of(self, *texts: str) -> str:
        """Return one of some texts."""
        return self.random.choice(texts)
