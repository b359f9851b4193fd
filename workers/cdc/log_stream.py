"""The log, asked for once and read when it comes.

The server decodes from where the oldest transaction began that still ran when its slot was moved last, and sends
nothing before it has decoded all that was asked for: where much is written, to whatever tables, that takes it minutes.
So the question outlives the epoch that asked it. Barriers go on without the source, and a later epoch reads what has
come (I13).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from workers.cdc.connecting import AwayError, Patient
from workers.cdc.patience import WITHIN_SECONDS
from workers.cdc.streaming import Streaming

_MESSAGE_AT: Final = 6
"""One field: their number, its length, the message."""


class LaterError(AwayError):
    """The log comes later; the session goes on."""


@dataclass
class LogStream:
    """What was asked: the log up to `upto`, with a limit about so many messages."""

    rows: Streaming
    upto: int
    limit: int | None
    waited: float = 0.0
    """How many seconds the external database was waited for."""

    @classmethod
    def begin(cls, connection: Patient, query: str, upto: int, limit: int | None) -> "LogStream":
        """Ask for the log. Raises AwayError."""
        return cls(Streaming.begin(connection, query), upto, limit)

    def messages(self, seconds: float, *, until: float, clock: Callable[[], float]) -> Iterator[bytes]:
        """Give the messages; the first is waited for so long, and all are read before `until`. Raises AwayError;
        LaterError where none has come yet.
        """
        while not self.rows.over:
            began = clock()
            if began >= until:
                raise AwayError("the log was not read in the time that an epoch has")
            rows = self.rows.take(min(seconds, until - began))
            self.waited += clock() - began
            if rows is None and seconds < WITHIN_SECONDS:
                raise LaterError("the external database is still decoding its log")
            if rows is None:
                raise AwayError(f"the rest of the log did not come within {min(seconds, until - began):.0f} s")
            seconds = WITHIN_SECONDS
            for row in rows:
                yield row[_MESSAGE_AT:]
