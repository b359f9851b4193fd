"""Request the log once, and read the answer when it comes, in this epoch or a later one.

The server starts decoding at the oldest transaction that was still running when its slot was last advanced. It sends
nothing before it has decoded all of the requested log. With many writes, to any tables, this takes minutes. So the
request outlives its epoch. Barriers continue without the source, and a later epoch reads the answer (I13).

After an answer has begun, the epoch waits for its rest while that comes fast enough. Otherwise barriers continue
without it as well. The received messages are kept, and every epoch adds to them until the answer is complete.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from workers.cdc.connecting import AwayError, Patient
from workers.cdc.kept import Kept
from workers.cdc.patience import AGAIN_SECONDS, GONE_SECONDS, WITHIN_SECONDS, rest
from workers.cdc.streaming import Streaming

DECODING: Final = "the external database is still decoding its log"
_MESSAGE_AT: Final = 6
"""Where the message begins in a row: after the number of fields, and the length of the only field."""


class LaterError(AwayError):
    """The answer comes later. The session stays open."""


@dataclass
class LogStream:
    """A request for the log up to `upto`; with a limit, for about that many messages."""

    rows: Streaming
    upto: int
    limit: int | None
    waited: float = 0.0
    """How many seconds were spent waiting for the external database."""
    kept: Kept = field(default_factory=Kept)
    """The received messages."""
    collecting: bool = False
    """Whether an epoch has continued without the rest. Then no message is read before the answer is complete."""
    came_at: float = 0.0
    """When the last message came."""

    @classmethod
    def begin(cls, connection: Patient, query: str, upto: int, limit: int | None) -> "LogStream":
        """Request the log. Raises AwayError."""
        return cls(Streaming.begin(connection, query), upto, limit)

    def messages(self, seconds: float, *, until: float, clock: Callable[[], float]) -> Iterator[bytes]:
        """Yield the messages. Wait `seconds` for the first one, and read all before `until`.

        Raises AwayError, and LaterError where no message, or too few, have come yet. A later call then yields all of
        them again.
        """
        if self.collecting:
            self._collect(clock)
            for row in self.kept.rows():
                yield row[_MESSAGE_AT:]
        spent = 0.0
        while not self.rows.over:
            began, begun = clock(), self.kept.size > 0
            if began >= until:
                raise AwayError("the log was not read in the time that an epoch has")
            rows = self._take(min(seconds, until - began), clock)
            if rows is None and seconds >= WITHIN_SECONDS:
                raise AwayError(f"the rest of the log did not come within {min(seconds, until - began):.0f} s")
            self.kept.add(rows or ())
            spent += clock() - began if begun else 0.0
            seconds = WITHIN_SECONDS if self.kept.full else rest(spent, self.kept.size)
            if not self.rows.over and (rows is None or seconds <= 0.0):
                self.collecting = self.kept.size > 0
                raise LaterError(DECODING)
            for row in rows or ():
                yield row[_MESSAGE_AT:]

    def close(self) -> None:
        """Cancel the rest of the answer, and delete the kept messages."""
        self.kept.close()
        self.rows.close()

    def _collect(self, clock: Callable[[], float]) -> None:
        """Keep messages until the answer is complete or the limit is reached. Raises AwayError or LaterError."""
        until = clock() + AGAIN_SECONDS
        while not (self.rows.over or self.kept.full):
            rows = self._take(max(until - clock(), 0.0), clock)
            self.kept.add(rows or ())
            if self.rows.over:
                return
            if rows is None and self.kept.size and clock() - self.came_at >= GONE_SECONDS:
                raise AwayError(f"the rest of the log did not come within {GONE_SECONDS:.0f} s")
            if rows is None or clock() >= until:
                raise LaterError(DECODING)

    def _take(self, seconds: float, clock: Callable[[], float]) -> list[bytes] | None:
        began = clock()
        rows = self.rows.take(seconds)
        now = clock()
        self.waited += now - began
        if rows is not None:
            self.came_at = now
        return rows
