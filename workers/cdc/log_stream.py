"""The log, asked for once and read when it comes.

The server decodes from where the oldest transaction began that still ran when its slot was moved last, and sends
nothing before it has decoded all that was asked for: where much is written, to whatever tables, that takes it minutes.
So the question outlives the epoch that asked it. Barriers go on without the source, and a later epoch reads what has
come (I13).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from workers.cdc.connecting import AwayError, Patient
from workers.cdc.streaming import Streaming

FIRST_SECONDS: Final = 1.0
"""How long an epoch waits for what it has asked for."""
AGAIN_SECONDS: Final = 0.1
"""How long where the last one had to go without it: somebody waits for every source that is slow."""
WITHIN_SECONDS: Final = 60.0
"""How long it waits for the rest."""
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
    late: bool = False
    """Whether an epoch has gone without it."""

    @classmethod
    def begin(cls, connection: Patient, query: str, upto: int, limit: int | None) -> "LogStream":
        """Ask for the log. Raises AwayError."""
        return cls(Streaming.begin(connection, query), upto, limit)

    def messages(self, *, slow: bool) -> Iterator[bytes]:
        """Give the messages. Raises AwayError; LaterError where none has come yet."""
        seconds = patience(late=self.late, slow=slow)
        while not self.rows.over:
            rows = self.rows.take(seconds)
            if rows is None and seconds != WITHIN_SECONDS:
                self.late = True
                raise LaterError("the external database is still decoding its log")
            if rows is None:
                raise AwayError(f"the rest of the log did not come within {seconds:g} s")
            seconds = WITHIN_SECONDS
            for row in rows:
                yield row[_MESSAGE_AT:]


def patience(*, late: bool, slow: bool) -> float:
    """Return how long an epoch waits: for what an epoch has gone without already, and where the last had to."""
    return 0.0 if late else AGAIN_SECONDS if slow else FIRST_SECONDS
