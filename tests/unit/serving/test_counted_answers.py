"""The bytes of an answer of Postgres are counted while they arrive (I13)."""

import socket
from typing import Any

import pytest
from psycopg.waiting import Ready, Wait

from service.serving.user_query import TooLargeError, _counted  # pyright: ignore[reportPrivateUsage]

SENT = 20_000


@pytest.mark.parametrize(("allowed", "refused"), [(SENT - 1, True), (SENT, False)])
def test_i13_an_answer_that_is_read_in_one_go_is_counted_when_it_is_over(*, allowed: int, refused: bool) -> None:
    """libpq does so if the server sends as fast as it reads. An error of 20 MB was said, and not refused."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as reader:
        writer, _ = server.accept()

        def read() -> Any:
            yield Wait.R
            writer.sendall(b"x" * SENT)
            assert len(reader.recv(SENT, socket.MSG_WAITALL)) == SENT
            return []

        with writer:
            counted = _counted(read(), reader.fileno(), allowed)
            assert next(counted) is Wait.R
            with pytest.raises(TooLargeError if refused else StopIteration):
                counted.send(Ready.R)
