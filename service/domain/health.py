"""Compute the readings of load signals for an adaptive limit, from their values and bounds. Texts contain no secret."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from service.domain.adaptive import FAR, Reading, Signal

_NO: Final = float("inf")


def failed(signal: Signal, text: str) -> Reading:
    """Return an unhealthy reading for a signal that could not be measured, because its value may be anything."""
    return Reading(signal, healthy=False, text=text, severity=_NO)


def of_lag(lag_bytes: int | None, *, bound_mb: int, signal: Signal = Signal.REPLICATION_LAG) -> Reading:
    """Return the reading of a server's slowest replica. `lag_bytes` is None if there is no replica."""
    if lag_bytes is None:
        return Reading(signal, healthy=True, text="no replica")
    lag_mb = lag_bytes / (1 << 20)
    text = f"a replica is {lag_mb:.1f} MB behind of {bound_mb} MB"
    return Reading(signal, healthy=lag_mb <= bound_mb, text=text, severity=lag_mb / bound_mb)


def of_active_queries(active: int | None, *, bound: int) -> Reading:
    """Return the reading of other users' active queries in an external database.

    `active` is None if the login may not see them. That is healthy, because the database is not at fault and the state
    would never change by itself.
    """
    signal = Signal.SOURCE_ACTIVE_QUERIES
    if active is None:
        return Reading(signal, healthy=True, text="the login may not see the queries of others")
    text = f"{active} queries of {bound} are active"
    return Reading(signal, healthy=active <= bound, text=text, severity=active / bound)


def of_connections(used: int, *, most: int, bound_percent: int) -> Reading:
    """Return the reading of the connections to the state store's server, as a share of its maximum."""
    share = used * 100 / most
    text = f"{used} of {most} connections are in use ({share:.0f} % of {bound_percent} %)"
    # A share never gets far beyond its bound, even if no connection is left.
    severity = FAR if used >= most else share / bound_percent
    return Reading(Signal.CONNECTIONS, healthy=share <= bound_percent, text=text, severity=severity)


def of_http(status: int, *, expected: int, shown: str) -> Reading:
    """Return the reading of an HTTP probe that answered within its timeout."""
    if status == expected:
        return Reading(Signal.HTTP_PROBE, healthy=True, text=f"{shown} answered {status}")
    return failed(Signal.HTTP_PROBE, f"{shown} answered {status}, not {expected}")


def of_sql(rows: Sequence[Sequence[Any]], *, largest: int) -> Reading:
    """Return the reading of an SQL probe: one boolean, or one number that is healthy up to `largest`."""
    if len(rows) != 1 or len(rows[0]) != 1:
        return failed(Signal.SQL_PROBE, "the query did not give one value")
    (value,) = rows[0]
    if isinstance(value, bool):
        text = f"the query gave {str(value).lower()}"
        return Reading(Signal.SQL_PROBE, healthy=True, text=text) if value else failed(Signal.SQL_PROBE, text)
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal("nan")
    if number.is_nan():
        return failed(Signal.SQL_PROBE, "the query gave neither a boolean nor a number")
    text = f"the query gave {str(value)[:40]} of {largest}"
    if number <= largest:
        return Reading(Signal.SQL_PROBE, healthy=True, text=text)
    # A severity is a multiple of the bound, which has no meaning for a bound of 0 or less.
    severity = float(number / largest) if largest > 0 else _NO
    return Reading(Signal.SQL_PROBE, healthy=False, text=text, severity=severity)
