"""The tables under the random queries of `stage_queries`: their columns, and users' random statements."""

from collections.abc import Mapping
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
    }
)
"""Kinds of columns and their types. Sums of `dbl` are exact in double precision, those of `flt` are not."""

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "t1": {"id": "big", "a": "int", "b": "big", "n": "num", "s": "txt", "d": "date"},
        "t2": {"a": "int", "s": "txt", "v": "big", "x": "dbl", "f": "bool", "m": "ts"},
        "t3": {ROW_ID: "big", "a": "int", "n": "num", "s": "txt", "f": "bool", "x": "dbl"},
        "t4": {"id": "big", "Odd name": "txt", "b": "big", "d": "date", "e": "flt", "m": "ts"},
    }
)
KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"t1": ("id",), "t2": ("a", "s"), "t3": (ROW_ID,), "t4": ("id",)}
)

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
    }
)


def tables() -> dict[str, str]:
    """Return the CREATE TABLE of each table."""
    texts: dict[str, str] = {}
    for name, columns in COLUMNS.items():
        parts = [f"{_quoted(one)} {KINDS[kind]}" for one, kind in columns.items() if one != ROW_ID]
        if KEYS[name] == (ROW_ID,):
            parts.insert(0, f"{ROW_ID} bigint primary key")
        else:
            parts.append(f"primary key ({', '.join(KEYS[name])})")
        texts[name] = f"create table {name} ({', '.join(parts)})"
    return texts


class Statements:
    """Users' random statements."""

    def __init__(self, random: Random, *, keys: int = 9) -> None:
        self._random, self._keys = random, keys

    def filled(self) -> list[str]:
        """Return the statements that fill the tables, or leave one empty."""
        return [self._insert(name, self._random.choice((0, 6, 9, 12, 12, 14))) for name in COLUMNS]

    def some(self) -> list[str]:
        """Return some statements of one epoch."""
        return [self._one(self._random.choice(list(COLUMNS))) for _ in range(self._random.choice((1, 1, 2, 3, 6)))]

    def _one(self, name: str) -> str:
        match self._random.randrange(20):
            case 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7:
                return self._insert(name, self._random.choice((1, 1, 2, 5)))
            case 8 | 9 | 10 | 11 | 12:
                return self._update(name)
            case 13 | 14 | 15:
                return self._moved(name)
            case 16 | 17 | 18:
                return f"delete from {name} where {self._few(name)}"
            case _:
                return f"delete from {name}"

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
        sets = ", ".join(f"{_quoted(one)} = {self._value(COLUMNS[name][one])}" for one in chosen)
        return f"update {name} set {sets} where {self._few(name)}"

    def _moved(self, name: str) -> str:
        """Return an update of a key, which leaves the other columns, if the new key is free."""
        to, of = (dict(zip(KEYS[name], self._key(name), strict=True)) for _ in range(2))
        sets = ", ".join(f"{_quoted(one)} = {value}" for one, value in to.items())
        free = " and ".join(f"taken.{_quoted(one)} = {value}" for one, value in to.items())
        where = " and ".join(f"{_quoted(one)} = {value}" for one, value in of.items())
        return f"update {name} set {sets} where {where} and not exists (select from {name} taken where {free})"

    def _few(self, name: str) -> str:
        column = self._random.choice(list(COLUMNS[name]))
        if self._random.random() < 0.2 and column not in KEYS[name]:
            return f"{_quoted(column)} is null"
        return f"{_quoted(column)} = {self._literal(COLUMNS[name][column], key=column in KEYS[name])}"

    def _key(self, name: str) -> list[str]:
        return [self._literal(COLUMNS[name][one], key=True) for one in KEYS[name]]

    def _rest(self, name: str) -> list[str]:
        return [self._value(kind) for one, kind in COLUMNS[name].items() if one not in KEYS[name]]

    def _value(self, kind: str) -> str:
        return "null" if self._random.random() < 0.2 else self._literal(kind)

    def _literal(self, kind: str, *, key: bool = False) -> str:
        if key and kind == "big":
            return str(self._random.randrange(self._keys))
        return self._random.choice(VALUES[kind])


def _quoted(name: str) -> str:
    return f'"{name}"'
