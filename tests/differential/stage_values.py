"""The tables under the random queries of `stage_queries`: their columns, and users' random statements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

from service.protocol.relation import ROW_ID

KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "big": "bigint",
        "int": "integer",
        "num": "numeric(10,2)",
        "dbl": "double precision",
        "flt": "double precision",
        "txt": "text",
        "bool": "boolean",
        "date": "date",
        "ts": "timestamp",
        "tz": "timestamptz",
        "raw": "bytea",
        "uid": "uuid",
        "time": "time",
        "real": "real",
        "iv": "interval",
        "json": "jsonb",
        "ints": "integer[]",
    }
)
"""Kinds of columns and their types. Sums of `dbl` are exact in double precision, those of `flt` are not."""

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "t1": {"id": "big", "a": "int", "b": "big", "n": "num", "s": "txt", "d": "date"},
        "t2": {"a": "int", "s": "txt", "v": "big", "x": "dbl", "f": "bool", "m": "ts"},
        "t3": {ROW_ID: "big", "a": "int", "n": "num", "s": "txt", "f": "bool", "x": "dbl"},
        "t4": {"id": "big", "Odd name": "txt", "b": "big", "d": "date", "e": "flt", "m": "ts"},
        "t5": {
            "id": "uid", "a": "int", "z": "tz", "w": "raw", "c": "time", "r": "real", "p": "iv", "j": "json",
            "l": "ints", "k": "uid",
        },
    }
)  # fmt: skip
KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"t1": ("id",), "t2": ("a", "s"), "t3": (ROW_ID,), "t4": ("id",), "t5": ("id",)}
)
_NOT_NULL: Final = frozenset({"t4.b", "t5.a", "t5.w"})
VIEWS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = MappingProxyType(
    {
        "v1": ("select a, count(*) as n, sum(b) as s, max(d) as d from t1 group by a",
               {"a": "int", "n": "big", "s": "number", "d": "date"}),
        "v2": ("select x.id, x.s, y.v, y.x from t1 x left join t2 y on y.s = x.s",
               {"id": "big", "s": "txt", "v": "big", "x": "dbl"}),
        "v3": ('select v1.n, v1.d, t3.s from v1 join t3 on t3.a = v1.a union all select b, d, "Odd name" from t4',
               {"n": "big", "d": "date", "s": "txt"}),
    }
)  # fmt: skip
"""Logical views, each with the kinds of its columns. A view may read those before it."""

VALUES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "big": ("0", "1", "2", "2", "3", "-1", "3000000000"),
        "int": ("0", "1", "1", "2", "3", "-1"),
        "num": ("0", "1", "1.5", "1.50", "-2.25", "10"),
        "dbl": ("0", "'-0'", "0.5", "1.5", "-2.25", "1024", "'NaN'", "'Infinity'", "'-Infinity'"),
        "flt": ("0.1", "0.2", "0.3", "1e-3", "'-0'", "'NaN'", "7"),
        "txt": ("''", "'a'", "'a'", "'A'", "'b'", "'ä€'", "'a%'", "'b_'"),
        "bool": ("true", "false"),
        "date": ("'2024-01-01'", "'2024-01-02'", "'2024-02-29'", "'1999-12-31'"),
        "ts": ("'2024-01-01'", "'2024-01-01 00:00:00.000001'", "'2024-01-02 12:30'", "'1999-12-31 23:59:59'"),
        "tz": ("'2024-01-01 00:00+00'", "'2024-01-01 02:00+02'", "'2024-03-31 01:30+00'", "'1969-12-31 23:59+00'"),
        "raw": ("'\\x'", "'\\x00'", "'\\x61'", "'\\xff00'"),
        "uid": tuple(f"'00000000-0000-0000-0000-00000000000{digit}'" for digit in range(9)),
        "time": ("'00:00'", "'12:00'", "'12:00:00.000001'", "'23:59:59.5'"),
        "real": ("0", "'-0'", "0.1", "1.5", "16777216", "'NaN'", "'Infinity'"),
        "iv": ("'1 day'", "'24:00'", "'1 mon'", "'30 days'", "'-00:00:00.000001'"),
        "json": ("'1'", "'1.0'", "'null'", "'{\"a\": 1}'", '\'{"a": [1, "b"], "b": null}\'', "'[]'"),
        "ints": ("'{}'", "'{1,2}'", "'{NULL}'", "'{2,1,1}'"),
    }
)
EXTREMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "num": ("99999999.99", "-99999999.99", "0.01"),
        "dbl": ("1e15", "-1e-15"),
        "flt": ("1e150", "1e-150", "'Infinity'", "'-Infinity'"),
        "txt": ("repeat('ab', 5000)", "'a''b\\\\c%_'", "' a '", "'žluťoučký 🐎'"),
        "date": ("'0001-01-01'", "'9999-12-31'"),
        "ts": ("'0001-01-01'", "'9999-12-31 23:59:59.999999'"),
        "tz": ("'0001-01-01 00:00+00'", "'9999-12-31 23:59:59.999999+00'"),
    }
)
"""Values that only the tables of some worlds have."""


def tables(random: Random, vnodes: Sequence[int]) -> dict[str, str]:
    """Return the CREATE TABLE of each table. Few vnodes have few pages, which is faster."""
    texts: dict[str, str] = {}
    for name, columns in COLUMNS.items():
        parts = [
            f"{_quoted(one)} {KINDS[kind]}{' not null' * (f'{name}.{one}' in _NOT_NULL)}"
            for one, kind in columns.items()
            if one != ROW_ID
        ]
        if KEYS[name] == (ROW_ID,):
            parts.insert(0, f"{ROW_ID} bigint primary key")
        else:
            parts.append(f"primary key ({', '.join(KEYS[name])})")
        texts[name] = f"create table {name} ({', '.join(parts)}) with (vnode_count = {random.choice(vnodes)})"
    return texts


@dataclass(frozen=True)
class Weather:
    """The kind of values in a world: how many are NULL, and whether there are extreme ones."""

    nulls: float
    extreme: bool

    @classmethod
    def of(cls, seed: int) -> "Weather":
        """Return that of a world."""
        random = Random(f"{seed} weather")
        return cls(random.choice((0.05, 0.2, 0.2, 0.5)), random.random() < 0.35)


class Statements:
    """Users' random statements."""

    def __init__(self, random: Random, weather: Weather, *, keys: int = 9) -> None:
        self._random, self._weather, self._keys = random, weather, keys

    def filled(self) -> list[str]:
        """Return the statements that fill the tables, or leave one empty."""
        return [self._insert(name, self._random.choice((0, 6, 9, 9, 12, 12, 12, 12, 14, 14))) for name in COLUMNS]

    def some(self) -> list[str]:
        """Return some statements of one epoch."""
        chosen = self._random.choices(list(COLUMNS), (3, 3, 3, 3, 1), k=self._random.choice((1, 1, 2, 3, 6)))
        return [text for name in chosen for text in self._emptied(name) or [self._one(name)]]

    def _emptied(self, name: str) -> list[str]:
        if self._random.random() > 0.08:
            return []
        refilled = [self._insert(name, self._random.choice((4, 9, 12)))] if self._random.random() < 0.7 else []
        return [f"delete from {name}", *refilled]

    def _one(self, name: str) -> str:
        match self._random.randrange(19):
            case 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7:
                return self._insert(name, self._random.choice((1, 2, 3, 6)))
            case 8 | 9 | 10 | 11 | 12:
                return self._update(name)
            case 13 | 14 | 15:
                return self._moved(name)
            case _:
                return f"delete from {name} where {self._few(name)}"

    def _insert(self, name: str, rows: int) -> str:
        found = {tuple(self._key(name)): self._rest(name) for _ in range(rows)}
        if not found:
            return f"delete from {name}"
        texts = ", ".join(f"({', '.join([*key, *rest])})" for key, rest in found.items())
        names = ", ".join(map(_quoted, [*KEYS[name], *(one for one in COLUMNS[name] if one not in KEYS[name])]))
        return f"insert into {name} ({names}) values {texts}"

    def _update(self, name: str) -> str:
        rest = [one for one in COLUMNS[name] if one not in KEYS[name]]
        chosen = self._random.sample(rest, self._random.randrange(1, 4))
        sets = ", ".join(f"{_quoted(one)} = {self._value(name, one)}" for one in chosen)
        return f"update {name} set {sets} where {self._few(name)}"

    def _moved(self, name: str) -> str:
        """Return an update of a key, which leaves the other columns, if the new key is free."""
        to, of = (dict(zip(KEYS[name], self._key(name), strict=True)) for _ in range(2))
        sets = ", ".join(f"{_quoted(one)} = {value}" for one, value in to.items())
        free = " and ".join(f"taken.{_quoted(one)} = {value}" for one, value in to.items())
        where = " and ".join(f"{_quoted(one)} = {value}" for one, value in of.items())
        return f"update {name} set {sets} where {where} and not exists (select from {name} taken where {free})"

    def _few(self, name: str) -> str:
        column = self._random.choice([one for one, kind in COLUMNS[name].items() if kind not in {"json", "ints"}])
        if self._random.random() < 0.2 and column not in KEYS[name]:
            return f"{_quoted(column)} is null"
        return f"{_quoted(column)} = {self._literal(COLUMNS[name][column], key=column in KEYS[name])}"

    def _key(self, name: str) -> list[str]:
        return [self._literal(COLUMNS[name][one], key=True) for one in KEYS[name]]

    def _rest(self, name: str) -> list[str]:
        return [self._value(name, one) for one in COLUMNS[name] if one not in KEYS[name]]

    def _value(self, name: str, column: str) -> str:
        null = self._random.random() < self._weather.nulls and f"{name}.{column}" not in _NOT_NULL
        return "null" if null else self._literal(COLUMNS[name][column])

    def _literal(self, kind: str, *, key: bool = False) -> str:
        if key and kind == "big":
            return str(self._random.randrange(self._keys))
        if not key and self._weather.extreme and self._random.random() < 0.3:
            return self._random.choice(EXTREMES.get(kind, VALUES[kind]))
        return self._random.choice(VALUES[kind])


def _quoted(name: str) -> str:
    return f'"{name}"'
