"""Sessions of Postgres that wait for an answer no longer than they want, whatever the server does."""

import math
import time
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

from service.protocol.answering import LateError, bounded

_monotonic: Final = time.monotonic  # noqa: TID251 - the limit of an answer is time
_UNLIMITED: Final = 1 << 62
Answer = TypeVar("Answer")


class NoAnswerError(psycopg.OperationalError):
    """The server did not answer in time, although it was told to stop. The session is closed."""


class BoundedSession(psycopg.Connection[TupleRow]):
    """A session that closes itself when an answer takes longer than `patience` in seconds.

    A server that hangs does not enforce its own timeouts. Some functions of Postgres run for hours on a short text, and
    heed neither timeouts nor the end of their session meanwhile.
    """

    patience: float = math.inf

    def wait(self, gen: PQGen[Answer], interval: float = 0.1, timeout: float | None = None) -> Answer:
        """See psycopg. Raises NoAnswerError."""
        if self.patience == math.inf:
            return super().wait(gen, interval, timeout)
        try:
            return self.within(gen, self.patience, interval, timeout)
        except LateError as error:
            self.pgconn.finish()
            raise NoAnswerError(str(error)) from None

    def within(self, gen: PQGen[Answer], seconds: float, interval: float, timeout: float | None = None) -> Answer:
        """Return the generator's result. Raises LateError after `seconds`, and UnansweredError for too many bytes.

        The session is as it was then.
        """
        limited = bounded(
            gen, clock=_monotonic, received=self.byte_counter(), seconds=seconds, most_bytes=self.answer_bytes_max
        )
        return super().wait(limited, interval, timeout)

    @property
    def answer_bytes_max(self) -> int:
        """The largest answer in bytes."""
        return _UNLIMITED

    def byte_counter(self) -> Callable[[], int]:
        """Return what counts the bytes that have come, for the limit of an answer."""
        return int
