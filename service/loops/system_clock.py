"""The clocks of this process."""

import time
from datetime import UTC, datetime


class SystemClock:
    """Implements `service.ports.clock.Clock`."""

    def now(self) -> datetime:
        """The wall clock, UTC."""
        return datetime.now(UTC)  # noqa: TID251 - this is the adapter that owns the clock

    def monotonic(self) -> float:
        """Seconds on the process's monotonic clock."""
        return time.monotonic()  # noqa: TID251 - as above
