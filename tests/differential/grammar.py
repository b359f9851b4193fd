"""The language of a view as templates, by the kind of what they give (`values.TYPES`).

A hole `<i>` takes an expression of that kind: a column, a literal or another template. A capital class stands for one
of several kinds, `<1:O>` twice in a template for the same one. `<'i>` is a quoted literal without a type, `<#>` a small
whole number, `<K>` whatever kind is asked for. `@@` stands for `|`, which separates templates.
"""

# ruff: noqa: E501 - one template after the other

import re
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Final

from tests.differential.values import PLAIN, Values

CLASSES: Final = {
    "W": "sib",
    "E": "sibn",
    "F": "sibnrd",
    "G": "sibrd",
    "O": "osibnrdxyDmtzu",
    "A": "osibnrdxyDmtzujvIX",
    "T": "Dtz",
    "P": "osibnxDtzujvmy",
}
"""Whole, exact and all numbers, and those that become doubles; what has an order; anything; instants; what can be printed."""

_TEXTS: Final[Mapping[str, str]] = {
    "s": "<s> + <s> | <s> - <s> | <s> * <s> | <s> / <s> | <s> % <s> | - <s> | abs(<s>) | <s> & <s> | <s> # <s> | ~ <s>"
    " | <F>::smallint | mod(<s>, <s>) | <s> @@ <s>",
    "i": "<i> + <s> | <i> - <i> | <i> * <i> | <s> / <i> | <i> % <i> | - <i> | abs(<i>) | <i> & <i> | <i> @@ <s> | ~ <i>"
    " | <F>::integer | <x>::integer | <o>::integer | mod(<i>, <s>) | length(<x>) | char_length(<x>) | octet_length(<x>)"
    " | octet_length(<y>) | length(<y>) | bit_length(<x>) | ascii(<x>) | strpos(<x>, 'b') | position('a' in <x>)"
    " | <D> - <D> | cardinality(<I>) | array_length(<X>, 1) | <I>[<#>] | <I>[<i>] | '<'i>'::integer | <i> + '<'i>'"
    " | character_length(<x>) | 7 / coalesce(id, 0)",
    "b": "<b> + <W> | <W> - <b> | <b> * <W> | <b> / <W> | <b> % <W> | - <b> | abs(<b>) | <b> & <W> | <b> # <b> | ~ <b>"
    " | <F>::bigint | <x>::bigint | mod(<b>, <W>) | '<'b>'::bigint",
    "n": "<n> + <E> | <E> + <n> | <n> - <E> | <E> - <n> | <n> * <E> | <n> / <E> | <n> % <E> | - <n> | abs(<n>) | round(<n>)"
    " | round(<n>, 2) | round(<n>, -2) | round(<n>, 12) | ceil(<n>) | floor(<n>) | trunc(<n>) | sign(<n>) | ceiling(<n>)"
    " | <d>::numeric(12,2) | <r>::numeric(12,2) | <E>::numeric(12,2) | <E>::numeric(38,10)"
    " | <d>::numeric(38,10) | <d>::numeric(5,5) | <E>::numeric(5,5) | <x>::numeric(20,6) | mod(<n>, <E>)"
    " | <n>::numeric(38,0) | coalesce(<n>, <E>) | coalesce(<E>, <n>) | greatest(<n>, <E>) | least(<E>, <n>, <E>)"
    " | case when <o> then <n> else <E> end | nullif(<n>, <E>) | round(<i>, -1) | extract(year from <T>)"
    " | extract(month from <T>) | extract(day from <T>) | extract(dow from <T>) | extract(isodow from <T>)"
    " | extract(doy from <T>) | extract(week from <T>) | extract(isoyear from <T>) | extract(quarter from <T>)"
    " | extract(hour from <t>) | extract(minute from <z>) | extract(second from <t>) | extract(epoch from <z>)"
    " | extract(epoch from <t>) | (<j> ->> 'k')::numeric(38,10) | '<'n>'::numeric(20,3) | <n> + '<'n>' | mod(<b>, <n>)",
    "r": "<r> + <r> | <r> - <r> | <r> * <r> | <r> / <r> | - <r> | abs(<r>) | <F>::real",
    "d": "<d> + <F> | <F> - <d> | <d> * <F> | <d> / <F> | - <d> | abs(<d>) | <F>::double precision | <r> + <E> | <r> * <E>"
    " | sqrt(<G>) | sqrt(abs(<G>)) | cbrt(<F>) | exp(<G>) | ln(<G>) | log(<G>) | log10(<G>) | round(<d>) | ceil(<d>)"
    " | floor(<d>) | trunc(<d>) | sign(<d>) | power(<G>, <#>) | <G> ^ <#> | pow(<d>, 0.5) | date_part('year', <T>)"
    " | ln(abs(<d>)) | power(abs(<d>), <d>) | sqrt(<n>) | exp(<n>) | ln(<n>) | log(<n>) | power(<n>, <#>) | <n> ^ <#>"
    " | date_part('second', <t>) | <x>::double precision | '<'d>'::double precision | date_part('epoch', <t>)",
    "x": "<x> @@@@ <x> | <x> @@@@ <P> | <P> @@@@ <x> | concat(<x>, <P>, <x>) | concat_ws('-', <x>, <P>, <x>) | upper(<x>)"
    " | lower(<x>) | substring(<x>, <#>) | substring(<x>, <#>, <#>) | substring(<x> from <#> for <#>) | substr(<x>, <i>)"
    " | substring(<x> for <#>) | left(<x>, <#>) | right(<x>, <#>) | left(<x>, <i>) | right(<x>, <i>) | lpad(<x>, 7, <x>)"
    " | lpad(<x>, <#>) | rpad(<x>, 7, <x>) | rpad(<x>, <#>) | trim(<x>) | btrim(<x>) | ltrim(<x>) | rtrim(<x>)"
    " | trim(both 'xa' from <x>) | trim(leading 'a' from <x>) | btrim(<x>, 'ab ') | rtrim(<x>, 'é b') | ltrim(<x>, '')"
    " | replace(<x>, 'a', <x>) | replace(<x>, 'b', <x>) | translate(<x>, 'abc', <x>) | reverse(<x>) | repeat(<x>, <#>)"
    " | md5(<x>) | md5(<y>) | split_part(<x>, 'a', <#>) | split_part(<x>, 'b', -1) | <P>::text | <x>::text"
    " | substring(<x>, '<'i>') | substring(<x>, 'a') | <j> ->> 'k' | <j> ->> 'n' | <j> -> 'o' ->> 'p' | <j> ->> 0"
    " | <j> -> 'l' ->> 1 | <j> -> 1 ->> 'k' | <j> -> 'k' ->> 'k' | <j> ->> 'a b' | <X>[<#>] | <X>[<i>] | left('<'x>', <#>)"
    " | substring(<x>, '<'i>', '<'i>') | translate(<x>, 'ab', <x>) | initcap(<x>) | <n>::text | <j> ->> -1",
    "o": "<1:O> = <1:O> | <1:O> <> <1:O> | <1:O> < <1:O> | <1:O> <= <1:O> | <1:O> > <1:O> | <1:O> >= <1:O> | <F> = <F>"
    " | <F> < <F> | <n> = <E> | <n> < <n> | <n> <> <n> | <n> = <n> | <E> >= <n> | <T> < <T> | <T> = <T>"
    " | <1:A> is null | <1:A> is not null | not <o> | <o> and <o> | <o> or <o> | <o> is true | <o> is not false"
    " | <o> is unknown | <1:O> is distinct from <1:O> | <E> is not distinct from <E> | <1:O> in (<1:O>, <1:O>, null)"
    " | <E> in (<n>, <E>) | <E> not in (<E>, <n>) | <1:O> between <1:O> and <1:O> | <n> between <E> and <n>"
    " | <x> like <x> | <x> like 'a%' | <x> like '%\\%%' | <x> ilike '%B_' | <x> not like '%!_%' escape '!' | <x> like '_'"
    " | starts_with(<x>, <x>) | <i> = any(<I>) | <x> = any(<X>) | <x> ~ 'a' | <i>::boolean | <x>::boolean | <x> ilike <x>"
    " | <1:O> = '<'1>' | <1:O> < '<'1>' | '<'1>' >= <1:O> | <1:O> in ('<'1>', <1:O>) | <1:O> not between '<'1>' and <1:O>"
    " | case <1:O> when <1:O> then true when '<'1>' then false end | '<'o>'::boolean | nullif(<E>, <E>) is null",
    "y": "'<'y>'::bytea | coalesce(<y>, '<'y>')",
    "D": "<D> + <s> | <s> + <D> | <D> - <#> | <t>::date | <z>::date | <x>::date | date '<'D>' | make_date(<i>, <#>, <#>)"
    " | '<'D>'::date | make_date(2024, <i>, 1)",
    "t": "<D>::timestamp | <z>::timestamp | date_trunc('month', <t>) | date_trunc('week', <t>) | date_trunc('hour', <t>)"
    " | date_trunc('quarter', <t>) | <t> + interval '1 month' | <t> - interval '1 month 1 day' | <D> + interval '90 minutes'"
    " | <t> + interval '1.5 seconds' | <D> - interval '1 year' | <z> at time zone 'UTC' | <t> - '2 hours'::interval"
    " | <x>::timestamp | timestamp '<'t>'",
    "z": "<D>::timestamptz | <t>::timestamptz | date_trunc('day', <z>) | date_trunc('year', <z>) | date_trunc('week', <D>)"
    " | <z> + interval '1 day 02:30:00' | <z> - interval '3' month | <t> at time zone 'UTC' | timestamptz '<'z>'"
    " | date_trunc('second', <z>) | <x>::timestamptz",
    "u": "'<'u>'::uuid | coalesce(<u>, '<'u>')",
    "m": "coalesce(<m>, '<'m>')",
    "I": "array[<i>, <s>] | array[1, <i>, null]",
    "X": "array[<x>, <x>] | array['a', <x>, null]",
    "j": "<j> -> 'k' | <j> -> 0 | <j> -> 'o' -> 'p' | <j> -> -1",
    "v": "",
}
_ANY: Final = "coalesce(<K>, <K>) | case when <o> then <K> else <K> end | case when <o> then <K> end"
_ORDERED: Final = (
    "greatest(<K>, <K>) | least(<K>, <K>, <K>) | nullif(<K>, <K>) | coalesce(<K>, '<'K>')"
    " | case <1:O> when <1:O> then <K> else <K> end | greatest('<'K>', <K>)"
)


def _split(texts: str) -> list[str]:
    return [text.strip().replace("@@", "|") for text in texts.split(" | ") if text.strip()]


TEMPLATES: Final[Mapping[str, Sequence[str]]] = {
    kind: (
        *_split(texts),
        *(text.replace("K", kind) for text in _split(_ANY)),
        *(text.replace("K", kind) for text in _split(_ORDERED) if kind in CLASSES["O"]),
    )
    for kind, texts in _TEXTS.items()
}

_LITERALS: Final = {
    "s": ("3::smallint", "(-2)::smallint", "0::smallint"),
    "i": ("0", "1", "2", "7", "-3", "1000000", "2147483647", "-2147483648"),
    "b": ("9000000000", "5::bigint", "(-1)::bigint", "9223372036854775807"),
    "n": (
        *("1.50", "0.5", "-2.5", "0.0000000001", "12345678901234567890.123", "1e3", "1e-3", "2.0", "0.00"),
        "99999999999999999999999999999999999999",
    ),
    "r": ("1.5::real", "0.1::real", "'NaN'::real"),
    "d": ("2.5::double precision", "0.1::double precision", "'Infinity'::double precision", "1e10::double precision"),
    "o": ("true", "false", "null::boolean"),
}
_TEXT_LITERALS: Final = ("", "a", "b", "ab", "%", "kůň", " ", "A", "it's", "\\", "1", "a_c", "\\%", "🐎", "\n")
_SMALL: Final = ("0", "1", "2", "3", "5", "-1", "-2")
_HOLE: Final = re.compile(r"<'(?P<quoted>[a-zA-Z0-9])>|<(?:(?P<tag>\d):)?(?P<kind>[a-zA-Z]|#)>")


class Writer:
    """Writes expressions over columns; `used` tells which templates they were made of."""

    def __init__(
        self,
        random: Random,
        columns: Mapping[str, Sequence[str]],
        templates: Mapping[str, Sequence[str]],
        values: Values,
    ) -> None:
        self._random, self._columns, self._templates, self._values = random, columns, templates, values
        self.used: list[str] = []

    def expression(self, kind: str, depth: int) -> str:
        """Return an expression of a kind, in parentheses where it needs them."""
        templates, columns = self._templates[kind], self._columns.get(kind, ())
        if depth > 0 and templates and (not columns or self._random.randrange(3)):
            return f"({self.filled(self._random.choice(templates), depth - 1)})"
        if columns and self._random.randrange(4):
            return self._random.choice(columns)
        return self._literal(kind)

    def filled(self, template: str, depth: int) -> str:
        """Return a template with its holes filled."""
        self.used.append(template)
        tags: dict[str, str] = {}

        def fill(found: re.Match[str]) -> str:
            if (name := found["quoted"]) is not None:
                return self._quoted(tags.get(name, name))
            if found["kind"] == "#":
                return self._random.choice(_SMALL)
            kind = tags.get(found["tag"] or "") or self._random.choice(CLASSES.get(found["kind"], found["kind"]))
            if found["tag"]:
                tags[found["tag"]] = kind
            return self.expression(kind, depth if self._random.randrange(2) else 0)

        if template.startswith("'<'1>'"):
            tags["1"] = self._random.choice(CLASSES["O"])
        return _HOLE.sub(fill, template)

    def _literal(self, kind: str) -> str:
        if kind in _LITERALS:
            return self._random.choice(_LITERALS[kind])
        if kind == "x":
            return "'" + self._random.choice(_TEXT_LITERALS).replace("'", "''") + "'"
        columns = self._columns.get(kind, ())
        if kind in "jvIX" and columns:
            return self._random.choice(columns)
        return f"'{self._quoted(kind)}'::{_TYPED[kind]}"

    def _quoted(self, kind: str) -> str:
        values = PLAIN["d"] if kind == "n" else PLAIN[kind] if self._random.randrange(3) else self._values.nasty(kind)
        text = self._random.choice([value for value in values if "${" not in value and len(value) < 100] or PLAIN[kind])
        return text.replace("'", "''")


_TYPED: Final = {"y": "bytea", "D": "date", "m": "time", "t": "timestamp", "z": "timestamptz", "u": "uuid"}


def without(excluded: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return the templates that are not excluded, each by its text. Raises KeyError for one that does not exist."""
    known = {template for templates in TEMPLATES.values() for template in templates}
    if gone := sorted(set(excluded) - known):
        raise KeyError(gone)
    return {kind: [one for one in templates if one not in excluded] for kind, templates in TEMPLATES.items()}
