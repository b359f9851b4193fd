"""The connector `datagen`: rows made by rules, for tests and demos. Options and values are RisingWave's.

Row `n` of a split is a pure function of the options, the split and `n`. A split's position is the number of its rows,
so an epoch that is run again makes the same rows (I3).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import shake_128
from typing import Final, Protocol

from service.protocol.columns import Column, TypeName

Row = tuple[str | None, ...]
"""The values of a row as Postgres texts, in the order of the columns."""

NAME: Final = "datagen"
ROWS_PER_SECOND: Final = "datagen.rows.per.second"
SPLITS: Final = "datagen.split.num"
SPLITS_MAX: Final = 256
ROWS_PER_SECOND_MAX: Final = 1_000_000
LENGTH_MAX: Final = 10_000
_FIELD: Final = re.compile(r"fields\.(?P<column>.+)\.(?P<option>[a-z_]+)", re.DOTALL)
_INTEGERS: Final = {
    TypeName.SMALLINT: (-(2**15), 2**15 - 1),
    TypeName.INTEGER: (-(2**31), 2**31 - 1),
    TypeName.BIGINT: (-(2**63), 2**63 - 1),
}
_FLOATS: Final = (TypeName.REAL, TypeName.DOUBLE)
_INSTANTS: Final = (TypeName.TIMESTAMP, TypeName.TIMESTAMPTZ)
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_LETTER_OF_BYTE: Final = bytes(ord(_LETTERS[byte % len(_LETTERS)]) for byte in range(256))
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BASE: Final = datetime(2026, 1, 1, tzinfo=UTC)
_WORD: Final = 2**64
_GOLDEN: Final = 0x9E3779B97F4A7C15


class Field(Protocol):
    """How one column gets its values."""

    def value(self, row: int) -> str | None:
        """Return the value in row `row`, which counts all rows of all splits from 0. None: there is no such row."""
        ...


@dataclass(frozen=True, slots=True)
class SequenceField:
    """`start`, `start + 1`, .. `end`."""

    start: int
    end: int

    def value(self, row: int) -> str | None:
        """See `Field`."""
        value = self.start + row
        return str(value) if value <= self.end else None


@dataclass(frozen=True, slots=True)
class RandomInteger:
    """A whole number from `low` to `high`."""

    seed: int
    low: int
    high: int

    def value(self, row: int) -> str:
        """See `Field`."""
        return str(self.low + random_bits(self.seed, row) % (self.high - self.low + 1))


@dataclass(frozen=True, slots=True)
class RandomFloat:
    """A number from `low` up to, but without, `high`."""

    seed: int
    low: float
    high: float

    def value(self, row: int) -> str:
        """See `Field`."""
        share = random_bits(self.seed, row) / _WORD
        return repr(self.low + (self.high - self.low) * share)


@dataclass(frozen=True, slots=True)
class RandomText:
    """`length` letters and digits."""

    seed: int
    length: int

    def value(self, row: int) -> str:
        """See `Field`."""
        seed = random_bits(self.seed, row).to_bytes(8, "big")
        # One call for all letters: a call for each would take milliseconds, and all barriers wait for a row.
        return shake_128(seed).digest(self.length).translate(_LETTER_OF_BYTE).decode("ascii")


@dataclass(frozen=True, slots=True)
class RandomInstant:
    """An instant in the last `past` before `base`."""

    seed: int
    base: datetime
    past: timedelta

    def value(self, row: int) -> str:
        """See `Field`."""
        most = max(self.past // timedelta(milliseconds=1), 1)
        before = timedelta(milliseconds=random_bits(self.seed, row) % most)
        return (self.base - before).isoformat(sep=" ")


@dataclass(frozen=True, slots=True)
class RandomBoolean:
    """True or false."""

    seed: int

    def value(self, row: int) -> str:
        """See `Field`."""
        return "true" if random_bits(self.seed, row) & 1 else "false"


@dataclass(frozen=True, slots=True)
class Datagen:
    """The rules of a table's rows: one field per visible column, and `rows_per_second` over all splits."""

    fields: tuple[Field, ...]
    rows_per_second: int
    splits: int

    def number(self, split: int, place: int) -> int:
        """Return the number of row `place` of a split among the rows of all splits."""
        return place * self.splits + split

    def rows(self, split: int, after: int, most: int) -> Iterator[Row]:
        """Yield at most `most` rows of a split after its first `after` ones. Fewer: the split has no more rows."""
        for place in range(after, after + most):
            row = tuple(field.value(self.number(split, place)) for field in self.fields)
            if None in row:
                return
            yield row


def read(options: Mapping[str, str], columns: Sequence[Column]) -> Datagen:
    """Return what the options mean for a table's visible columns. Raises ValueError with the reason."""
    fields: dict[str, dict[str, str]] = {column.name: {} for column in columns}
    for name, text in options.items():
        found = _FIELD.fullmatch(name)
        if found is None and name not in (ROWS_PER_SECOND, SPLITS):
            raise ValueError(f'unknown option "{name}"')
        if found is not None:
            if found["column"] not in fields:
                raise ValueError(f'option "{name}": there is no column "{found["column"]}"')
            fields[found["column"]][found["option"]] = text
    per_second = _whole(ROWS_PER_SECOND, options.get(ROWS_PER_SECOND, "10"), 1, ROWS_PER_SECOND_MAX)
    splits = _whole(SPLITS, options.get(SPLITS, "1"), 1, SPLITS_MAX)
    made = tuple(_field(column, place, fields[column.name]) for place, column in enumerate(columns))
    return Datagen(made, per_second, splits)


def random_bits(seed: int, place: int) -> int:
    """Return 64 random bits: output `place` of SplitMix64 (Steele, Lea and Flood, 2014) with this seed."""
    mixed = (seed + (place + 1) * _GOLDEN) % _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % _WORD
    return mixed ^ (mixed >> 31)


def _field(column: Column, place: int, options: dict[str, str]) -> Field:
    kind = options.pop("kind", "random")
    if kind not in ("random", "sequence"):
        raise ValueError(f'fields.{column.name}.kind is "random" or "sequence", not "{kind}"')
    made = (_sequence if kind == "sequence" else _random)(column, place, options)
    if options:
        raise ValueError(f'unknown option "fields.{column.name}.{next(iter(options))}" of a {kind} {column.type}')
    return made


def _sequence(column: Column, _place: int, options: dict[str, str]) -> Field:
    limits = _INTEGERS.get(column.type.name)
    if limits is None or column.type.array:
        raise ValueError(f'column "{column.name}" is {column.type}: a sequence is of smallint, integer or bigint')
    name = f"fields.{column.name}"
    start = _whole(f"{name}.start", options.pop("start", "0"), *limits)
    return SequenceField(start, _whole(f"{name}.end", options.pop("end", str(limits[1])), *limits))


def _random(column: Column, place: int, options: dict[str, str]) -> Field:
    name, kind = f"fields.{column.name}", column.type.name
    seed = _whole(f"{name}.seed", options.pop("seed", str(place)), 0, _WORD - 1)
    if not column.type.array:
        if kind in _INTEGERS:
            low = _whole(f"{name}.min", options.pop("min", "0"), *_INTEGERS[kind])
            most = options.pop("max", str(min(max(low, 0) + 1000, _INTEGERS[kind][1])))
            return RandomInteger(seed, low, _whole(f"{name}.max", most, low, _INTEGERS[kind][1]))
        if kind in _FLOATS:
            low = _number(f"{name}.min", options.pop("min", "0"))
            return RandomFloat(seed, low, _number(f"{name}.max", options.pop("max", str(low + 1000))))
        if kind is TypeName.TEXT:
            return RandomText(seed, _whole(f"{name}.length", options.pop("length", "10"), 0, LENGTH_MAX))
        if kind in _INSTANTS:
            base = _instant(f"{name}.basetime", options.pop("basetime", _BASE.isoformat()))
            return RandomInstant(seed, base, _duration(f"{name}.max_past", options.pop("max_past", "1d")))
        if kind is TypeName.BOOLEAN:
            return RandomBoolean(seed)
    raise ValueError(f'column "{column.name}" is {column.type}, which datagen cannot make')


def _whole(name: str, text: str, low: int, high: int) -> int:
    value = int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else None
    if value is None or not low <= value <= high:
        raise ValueError(f'option "{name}" is a whole number from {low} to {high}, not "{text}"')
    return value


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) <= 1e300:
        raise ValueError(f'option "{name}" is a finite number, not "{text}"')
    return value


def _duration(name: str, text: str) -> timedelta:
    found = re.fullmatch(r"([0-9]{1,7})([smhd])", text)
    if found is None:
        raise ValueError(f'option "{name}" is a duration such as 30s, 5m, 2h or 1d, not "{text}"')
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def _instant(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f'option "{name}" is an instant such as 2026-01-01T00:00:00Z, not "{text}"') from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
