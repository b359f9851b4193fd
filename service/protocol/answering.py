"""How long an external server may take to answer, how much it may say, and what is kept of its words. Pure.

A server's own limits are its own to keep: one that hangs behind a connection that is well, or that never ends to send,
would hold up everybody who waits for whoever asked it (I13).
"""

import struct
from collections.abc import Callable, Generator
from typing import Final, TypeVar

WORDS_MAX: Final = 500
"""How many characters of a server's message are kept: it goes into reports, events, logs and answers."""
_BYTES_RECEIVED_AT: Final = 128
TCP_INFO_BYTES: Final = _BYTES_RECEIVED_AT + 8
"""How much of `tcp_info` has to be asked for."""

Wanted = TypeVar("Wanted")
Ready = TypeVar("Ready")
Answer = TypeVar("Answer")


class UnansweredError(Exception):
    """A server has sent too much, or (`LateError`) taken too long."""


class LateError(UnansweredError):
    """A server has not answered in time."""


def bounded(
    asking: Generator[Wanted, Ready, Answer],
    *,
    clock: Callable[[], float],
    received: Callable[[], int],
    seconds: float,
    most_bytes: int,
) -> Generator[Wanted, Ready, Answer]:
    """Go on with what a driver does for one answer, until that is over; whoever runs it calls again now and then, also
    when nothing has come. Raises UnansweredError.
    """
    try:
        wanted = next(asking)
        until, before = clock() + seconds, received()
        while True:
            wanted = asking.send((yield wanted))
            if received() - before > most_bytes:
                raise UnansweredError(f"an answer of more than {most_bytes >> 20} MB")
            if clock() >= until:
                raise LateError(f"no answer within {seconds:g} s")
    except StopIteration as over:
        answer: Answer = over.value
        return answer


def bytes_received(tcp_info: bytes) -> int:
    """Return how much a TCP connection has brought so far, by what Linux says of it; 0 where it does not say."""
    return struct.unpack_from("=Q", tcp_info, _BYTES_RECEIVED_AT)[0] if len(tcp_info) >= TCP_INFO_BYTES else 0


def words(text: str) -> str:
    """Return a server's message, cut where it is long."""
    return text if len(text) <= WORDS_MAX else f"{text[:WORDS_MAX]}..."
