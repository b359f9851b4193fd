"""Write numbers, times and sizes as people read them. The words are those of the command line."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from service.domain.words import span

UNKNOWN: Final = "unknown"
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def number(value: int | None) -> str:
    """Return a whole number with separators, or `unknown`."""
    return UNKNOWN if value is None else f"{value:,}"


def size(count: int | None) -> str:
    """Return a size in bytes with a unit, or `unknown`."""
    if count is None:
        return UNKNOWN
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} {_UNITS[unit]}" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def millis(value: float | None) -> str:
    """Return milliseconds as text; a dash if they are not known."""
    return "-" if value is None else f"{value:,.0f} ms"


def instant(at: datetime | None) -> str:
    """Return an instant in UTC, to the second; a dash if there is none."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def ago(at: datetime | None, now: datetime) -> str:
    """Return how long ago an instant was; empty if it is not known."""
    return "" if at is None else span(max((now - at).total_seconds(), 0.0))


def facts(given: Mapping[str, Any]) -> str:
    """Return the facts of an event in one line."""
    return " ".join(f"{name}={_fact(value)}" for name, value in given.items() if value is not None)


def _fact(value: Any) -> str:
    """Return a fact as text: one that holds others in brackets, and no notation of a language."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return "(" + ", ".join(f"{name}={_fact(one)}" for name, one in pairs.items()) + ")" if pairs else "none"
    if isinstance(value, list | tuple):
        return ", ".join(_fact(one) for one in cast("Sequence[Any]", value)) or "none"
    return str(value)
