"""Limit how long an external server may take to answer, how much it may send, and how much of its messages is kept.

The limits are tidefill's own because a server may ignore its own timeouts. A server that hangs behind a healthy
connection, or that never stops sending, would block every caller that waits for the answer (I13). Pure.
"""

import struct
from collections.abc import Callable, Generator
from typing import Final, TypeVar

WORDS_MAX: Final = 500
"""Characters of a server's message that are kept in reports, events, logs and answers."""
NO_BUFFERS: Final = "no unpinned buffers available"
_INTERNAL: Final = "XX000"
_BYTES_RECEIVED_AT: Final = 128
TCP_INFO_BYTES: Final = _BYTES_RECEIVED_AT + 8
"""How many bytes of `tcp_info` a caller requests, so that `bytes_received` can read its counter."""

Wanted = TypeVar("Wanted")
Ready = TypeVar("Ready")
Answer = TypeVar("Answer")


class UnansweredError(Exception):
    """A server sent too many bytes, or took too long (`LateError`)."""


class LateError(UnansweredError):
    """A server did not answer in time."""


def is_crowded(sqlstate: str | None, message: str) -> bool:
    """Whether a server of Postgres says that readers hold a page in each of its buffers."""
    return sqlstate == _INTERNAL and NO_BUFFERS in message


def bounded(
    asking: Generator[Wanted, Ready, Answer],
    *,
    clock: Callable[[], float],
    received: Callable[[], int],
    seconds: float,
    most_bytes: int,
) -> Generator[Wanted, Ready, Answer]:
    """Drive a driver's generator for one answer until it returns or passes a limit.

    The caller must also resume the generator at intervals when no data has arrived, because the limits are checked only
    then. Raises UnansweredError above `most_bytes` received bytes, and LateError after `seconds`.
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
    """Return how many bytes a TCP connection has received, from Linux's `tcp_info`; 0 if the kernel
    does not report it.
    """
    return struct.unpack_from("=Q", tcp_info, _BYTES_RECEIVED_AT)[0] if len(tcp_info) >= TCP_INFO_BYTES else 0


def words(text: str) -> str:
    """Return a server's message, cut to `WORDS_MAX` characters."""
    return text if len(text) <= WORDS_MAX else f"{text[:WORDS_MAX]}..."
