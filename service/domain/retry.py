"""Compute how long a graph waits before it starts again."""

from datetime import timedelta
from typing import Final

BACKOFF_FIRST: Final = timedelta(milliseconds=20)
BACKOFF_MAX: Final = timedelta(seconds=5)


def backoff(attempts: int) -> timedelta:
    """Return the wait before the next start after `attempts` failed starts: 20 ms, doubling to 5 s."""
    if attempts <= 0:
        return timedelta(0)
    # The maximum applies beyond 2^8 anyway. The cap keeps the power small.
    return min(BACKOFF_FIRST * 2 ** min(attempts - 1, 8), BACKOFF_MAX)
