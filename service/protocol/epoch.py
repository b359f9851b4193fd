"""Compute the one epoch sequence: `unix_ms << 16`, strictly increasing, owned by the leader."""

from datetime import UTC, datetime, timedelta
from typing import Final

from service.protocol.ids import Epoch

NEVER: Final = Epoch(0)
"""Before every epoch. A graph has committed this epoch before its first barrier."""

_SEQUENCE_BITS: Final = 16
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def following(last: Epoch, *, now: datetime) -> Epoch:
    """Return the epoch after `last`: the present instant, or `last + 1` if the clock is not ahead of `last`."""
    return Epoch(max(last + 1, _unix_milliseconds(now) << _SEQUENCE_BITS))


def instant_of(epoch: Epoch) -> datetime:
    """Return the wall-clock instant (UTC, millisecond resolution) at which `epoch` was made."""
    return _UNIX_EPOCH + timedelta(milliseconds=unix_milliseconds_of(epoch))


def unix_milliseconds_of(epoch: Epoch) -> int:
    """Return the Unix time in milliseconds at which `epoch` was made."""
    return epoch >> _SEQUENCE_BITS


def _unix_milliseconds(instant: datetime) -> int:
    return (instant - _UNIX_EPOCH) // timedelta(milliseconds=1)
