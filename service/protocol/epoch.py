"""Read an epoch's number: `unix_ms << 16`. The leader makes epochs (`service.domain.epochs`)."""

from datetime import UTC, datetime, timedelta
from typing import Final

from service.protocol.ids import Epoch

NEVER: Final = Epoch(0)
"""Before every epoch. A graph has committed this epoch before its first barrier."""

SEQUENCE_BITS: Final = 16
UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def instant_of(epoch: Epoch) -> datetime:
    """Return the wall-clock instant (UTC, millisecond resolution) at which `epoch` was made."""
    return UNIX_EPOCH + timedelta(milliseconds=unix_milliseconds_of(epoch))


def unix_milliseconds_of(epoch: Epoch) -> int:
    """Return the Unix time in milliseconds at which `epoch` was made."""
    return epoch >> SEQUENCE_BITS
