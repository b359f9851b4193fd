"""The log, asked for once and read when it comes.

The server decodes from where the oldest transaction began that still ran when its slot was moved last, and sends
nothing before it has decoded all that was asked for: where much is written, to whatever tables, that takes it minutes.
So the question outlives the epoch that asked it. Barriers go on without the source, and a later epoch reads what has
come (I13).

The rest of an answer that has begun is waited for while it comes at a pace. If it does not, barriers go on without it
as well: what has come is kept, and what comes is added to it in every epoch until all of it is there.
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
    kept: Kept = field(default_factory=Kept)
    """What has come of it."""
    collecting: bool = False
    """Whether an epoch has gone on without the rest: nothing is read before all has come."""
    came_at: float = 0.0
    """When the last of it came."""

    @classmethod
    def begin(cls, connection: Patient, query: str, upto: int, limit: int | None) -> "LogStream":
        """Ask for the log. Raises AwayError."""
        return cls(Streaming.begin(connection, query), upto, limit)

    def messages(self, seconds: float, *, until: float, clock: Callable[[], float]) -> Iterator[bytes]:
        """Give the messages; the first is waited for so long, and all are read before `until`. Raises AwayError;
        LaterError where none, or too little, has come yet: then all of them are given again later.
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
        """Have done with it: what is still to come is cancelled."""
        self.kept.close()
        self.rows.close()

    def _collect(self, clock: Callable[[], float]) -> None:
        """Keep what has come, until all has or there is no more room. Raises AwayError, LaterError."""
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
