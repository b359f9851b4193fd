"""How long and how much a server may answer: nothing here knows what time it is, or what was received."""

import socket
from collections.abc import Generator

import pytest

from service.protocol.answering import (
    TCP_INFO_BYTES,
    WORDS_MAX,
    LateError,
    UnansweredError,
    bounded,
    bytes_received,
    words,
)


def asking(steps: int) -> Generator[str, int, int]:
    """Ask for so many things; return their sum."""
    total = 0
    for _ in range(steps):
        total += yield "read"
    return total


def run(steps: int, *, second: float = 0.0, size: int = 0) -> int:
    """Let every step take so long, and bring so many bytes."""
    now, got = [0.0], [0]

    def received() -> int:
        return got[0]

    answer = bounded(asking(steps), clock=lambda: now[0], received=received, seconds=3.0, most_bytes=3 << 20)
    try:
        assert next(answer) == "read"
        while True:
            now[0], got[0] = now[0] + second, got[0] + size
            assert answer.send(1) == "read"
    except StopIteration as over:
        return int(over.value)


@pytest.mark.parametrize("steps", [0, 1, 100])
def test_an_answer_within_bounds_passes(steps: int) -> None:
    assert run(steps) == steps


def test_the_last_step_counts_however_late_it_is() -> None:
    assert run(1, second=100.0, size=100 << 20) == 1


def test_an_answer_that_takes_too_long_or_brings_too_much_is_given_up() -> None:
    with pytest.raises(LateError, match="no answer within 3 s"):
        run(5, second=1.0)
    with pytest.raises(UnansweredError, match="more than 3 MB") as error:
        run(5, size=1 << 20)
    assert not isinstance(error.value, LateError)


def test_what_comes_before_it_is_late_counts_as_received() -> None:
    assert run(2, second=1.0, size=1 << 20) == 2


def test_a_servers_words_are_cut_where_they_are_many() -> None:
    assert words("no") == "no"
    assert len(words("no" * 100_000)) == WORDS_MAX + 3


def test_what_a_connection_has_brought_is_read_where_the_system_says_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            other.sendall(b"x" * 1000)
            left = 1000
            while left:
                left -= len(one.recv(left))
            told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    assert bytes_received(told) in (0, 1000)
    assert bytes_received(told[:20]) == 0
