"""Parse the literal intervals of a view. Spark accepts other texts than Postgres, so it must not parse them."""

import re
from decimal import Decimal
from typing import Final

from service.domain.errors import Invalid
from service.sql.expressions.typed import Span

_MICROSECONDS: Final = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 10**6,
    "sec": 10**6,
    "minute": 60 * 10**6,
    "min": 60 * 10**6,
    "hour": 3600 * 10**6,
}
_DAYS: Final = {"day": 1, "week": 7}
_MONTHS: Final = {"month": 1, "mon": 1, "year": 12, "decade": 120, "century": 1200}
_PART: Final = re.compile(r"\s*([+-]?[0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]+)", re.IGNORECASE)
_CLOCK: Final = re.compile(r"\s*([0-9]{1,6}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?\s*$")


def parse_span(text: str) -> Span:
    """Return the interval that a text such as `1 day 02:00:00` or `-3 months` means. Raises Invalid."""
    months = days = 0
    microseconds = Decimal(0)
    at, refusal = (
        0,
        Invalid(f'interval "{text}" is not supported in a view: write it as number and unit'),
    )
    while found := _PART.match(text, at):
        amount, unit = Decimal(found[1]), _singular(found[2].lower())
        if unit in _MICROSECONDS:
            microseconds += amount * _MICROSECONDS[unit]
        elif amount == int(amount) and unit in _DAYS:
            days += int(amount) * _DAYS[unit]
        elif amount == int(amount) and unit in _MONTHS:
            months += int(amount) * _MONTHS[unit]
        else:
            raise refusal
        at = found.end()
    if clock := _CLOCK.match(text, at):
        hours, minutes, seconds, fraction = (clock[group] or "0" for group in (1, 2, 3, 4))
        microseconds += ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 10**6 + int(fraction.ljust(6, "0"))
        at = clock.end()
    if at == 0 or text[at:].strip():
        raise refusal
    return Span(months, days, int(microseconds))


def _singular(unit: str) -> str:
    return "century" if unit == "centuries" else unit.removesuffix("s")
