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

SAFE: Final = (
    "big", "int", "num", "dbl", "txt", "bool", "date", "ts", "flt", "tz", "raw", "uid", "time", "real",
)  # fmt: skip
"""Kinds whose equal values may stand for each other."""
ORDERED: Final = tuple(kind for kind in SAFE if kind not in {"bool", "uid", "raw"})
"""The types with a least value in all versions of Postgres."""
NUMBERS: Final = ("big", "int", "num", "dbl", "flt")


_PLACE: Final = re.compile(r"\{([^{}]+)\}")

COMPUTED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "big": (
            "({big} + {int})", "abs({big})", "({big} % 3)", "length({txt})::bigint", "{int}::bigint", "(- {big})",
            "({date} - date '2024-01-01')::bigint", "extract(month from {ts})::bigint", "cardinality({ints})::bigint",
            "octet_length({raw})::bigint", "extract(epoch from {iv})::bigint",
        ),
        "int": (
            "({int} + 1)", "({int} - {int})", "({int} / 2)", "length({txt})", "{bool}::integer", "strpos({txt}, 'a')",
            "({ints})[1]", "(case {int} when {int} then 1 when 2 then null else 3 end)", "num_nulls({it}, {txt})",
        ),
        "num": ("({num} + {num})", "abs({num})", "(- {num})", "{int}::numeric(10,2)"),
        "dbl": ("({dbl} * 2)", "({dbl} + {dbl})", "{int}::double precision"),
        "flt": ("({flt} * 2)", "abs({flt})", "({flt} + 0.1)"),
        "txt": (
            "({txt} || {txt})", "lower({txt})", "upper({txt})", "substr({txt}, 1, 1)", "left({txt}, 1)", "{int}::text",
            "{date}::text", "replace({txt}, 'a', 'b')", "{num}::text", "to_char({ts}, 'YYYY-MM')", "{bool}::text",
            "({json} ->> 'a')", "encode({raw}, 'hex')", "concat({txt}, {int}, {bool})",
            "regexp_replace({txt}, 'a+', 'x')",
        ),
        "bool": ("({if})",),
        "date": ("({date} + 1)", "{ts}::date", "({date} - {int})"),
        "ts": ("({ts} + interval '1 day')", "date_trunc('day', {ts})", "{date}::timestamp"),
        "number": (
            "({num} * 1.5)", "({num} / 3)", "({int} * 0.25)", "round({num}, 1)", "({num} * {num})", "trim_scale({num})",
            "case when {if} then {num} * 1.50 else {int} end", "coalesce({num} * 0.1, {int})", "({num} % 0.7)",
        ),
        "approx": ("sqrt(abs({int}))",),
        "list": ("array[{int}, 1]",),
        "tz": (
            "({tz} + interval '1 hour')", "({ts} at time zone 'UTC')",
            "(date_trunc('day', {tz} at time zone 'UTC') at time zone 'UTC')",
        ),
        "raw": ("decode(md5({txt}), 'hex')", "({raw} || {raw})", "convert_to({txt}, 'UTF8')"),
        "uid": ("md5({txt})::uuid",),
        "time": ("({time} + interval '1 hour')", "{ts}::time"),
        "real": ("({real} * 2)", "(- {real})", "{int}::real"),
        "iv": ("({iv} + {iv})", "({int} * interval '1 day')", "({ts} - {ts})"),
        "json": ("to_jsonb({int})", "({json} -> 'a')", "jsonb_build_object('k', {txt})"),
        "ints": ("array[{int}, {int}]", "({ints} || {int})"),
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
    "{bool} is unknown", "{txt} ~ '^[ab]'", "{txt} similar to '(a|b)%'", "({it}, {int}) = ({it}, {int})",
    "({int}, {it}) < ({int}, {it})", "{it} = any (array[{literal}, {literal}])", "{it} <> all (array[{literal}, null])",
    "({it}, {int}) in (({literal}, 1), ({literal}, 2))", "{iv} > {iv}", "{json} = {json}", "{ints} = {ints}",
    "{json} ? 'a'", "{int} = any ({ints})", "{it} not between {it} and {it}", "({it} = {it}) is not true",
)  # fmt: skip
"""Conditions. `{other}` can be compared with `{it}` by `{<}`."""


_BY_STORE: Final = re.compile(
    r"json|ints|\biv\b|time\}|::time|similar|~|regexp|to_char|convert_to|decode|encode|num_nulls|array|at time zone|/"
    r"|raw\} \|\||-? \{ts\}\)|, \{i|%|coalesce\(\{num|::uuid|case when \{if\} then \{num"
)
"""Expressions that only the store computes."""
SELDOM: Final = 0.05


@dataclass(frozen=True)
class Col:
    """A column as an expression names it."""

    sql: str
    kind: str


class Scalars:
    """Expressions from a random source."""

    def __init__(self, random: Random, *, narrow: bool = False) -> None:
        """With `narrow`, what only the store computes is seldom drawn."""
        self.random, self.narrow = random, narrow

    def chance(self, share: float) -> bool:
        """Return True in a share of calls."""
        return self.random.random() < share

    def narrowly(self) -> bool:
        """Whether to draw only what Spark computes as well, this time."""
        return self.narrow and not self.chance(SELDOM)

    def form(self, forms: Sequence[str]) -> str:
        """Return one of some forms."""
        both = [form for form in forms if _BY_STORE.search(form) is None] if self.narrowly() else forms
        return self.random.choice(both or forms)

    def literal(self, kind: str) -> str:
        """Return a typed constant."""
        value = self.random.choice(VALUES[kind])
        return f"({value})::{KINDS[kind]}" if value.startswith("-") else f"{value}::{KINDS[kind]}"

    def kind_of(self, cols: Sequence[Col], kinds: Sequence[str] = SAFE) -> str:
        """Return the kind of some column, if one is of these kinds."""
        found = [one.kind for one in cols if one.kind in kinds]
        return self.random.choice(found) if found else self.random.choice(list(kinds))

    def value(self, kind: str, cols: Sequence[Col], depth: int = 2) -> str:
        """Return an expression of a kind, or a column of any."""
        if kind == "any":
            return self.random.choice(cols).sql if cols else "1"
        own = [one.sql for one in cols if one.kind == kind]
        if own and (depth == 0 or self.chance(0.7)):
            return self.random.choice(own)
        if depth == 0 or kind not in KINDS or self.chance(0.1):
            return self.literal(kind) if kind in KINDS else self.computed(kind, cols, 0)
        return self.computed(kind, cols, depth - 1)

    def computed(self, kind: str, cols: Sequence[Col], depth: int) -> str:
        """Return an expression of a kind that computes something."""
        forms = CHOSEN if kind in KINDS and self.chance(0.3) else COMPUTED[kind]
        return self.filled(self.form(forms), kind, cols, depth)

    def condition(self, cols: Sequence[Col], depth: int = 1) -> str:
        """Return a condition."""
        if depth and self.chance(0.3):
            word = self.random.choice(("and", "or", "or"))
            return f"({self.condition(cols, depth - 1)} {word} {self.condition(cols, depth - 1)})"
        if depth and self.chance(0.1):
            return f"not ({self.condition(cols, depth - 1)})"
        return self.filled(self.form(CONDITIONS), self.kind_of(cols), cols, depth)

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
