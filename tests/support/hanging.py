"""A way to an external server that stops to bring anything, or brings it slowly, and one that lets everybody in and
then talks nonsense.
"""

import socket
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.faulty_proxy import FaultyProxy, accepting

_LET_IN = struct.pack(">cII", b"R", 8, 0)
_READY = struct.pack(">cIc", b"Z", 5, b"I")
_NO_TLS = b"N"
_ENCODING = b"client_encoding\x00UTF8\x00"
_SAID = struct.pack(">cI", b"S", 4 + len(_ENCODING)) + _ENCODING


@dataclass
class Drip:
    """On a session that has asked in these words, what comes then comes in pieces, with a pause after each."""

    words: bytes
    piece: int
    pause: float
    most: float = float("inf")
    """After so many bytes nothing comes any more."""


@dataclass
class Way(FaultyProxy):
    """Connections go to the server until it is made to hang. With an answer it brings that, and no server is asked."""

    answer: bytes | None = None
    more: bytes = b""
    """What is sent after the answer again and again."""
    late: tuple[bytes, float] | None = None
    """What is asked in these words is brought so many seconds later."""
    drip: Drip | None = None
    dripped: int = 0
    """How many bytes have come in pieces."""
    asked: list[bytes] = field(default_factory=list[bytes])
    """The pieces that the clients have sent."""

    def serve(self, client: socket.socket) -> None:
        if self.answer is None:
            super().serve(client)
        else:
            self._answer(client)

    def carrier(self, client: socket.socket, server: socket.socket) -> Callable[[socket.socket, bytes], None]:
        carry_whole = super().carrier(client, server)
        drips: Drip | None = None

        def carry(source: socket.socket, data: bytes) -> None:
            nonlocal drips
            if source is client:
                self.asked.append(data)
                drips = self.drip if self.drip is not None and self.drip.words in data else None
                if self.late is not None and self.late[0] in data:
                    self.hangs.wait(self.late[1])
            if source is server and drips is not None:
                self.hangs.wait(self.far)
                self._in_pieces(client, data, drips)
            else:
                carry_whole(source, data)

        return carry

    def _in_pieces(self, client: socket.socket, data: bytes, drips: Drip) -> None:
        for at in range(0, len(data), drips.piece):
            while self.dripped >= drips.most and not self.over and self.drip is drips:
                self.hangs.wait(0.02)
            if self.over or self.drip is not drips:
                client.sendall(data[at:])
                return
            client.sendall(data[at : at + drips.piece])
            self.dripped += drips.piece
            self.hangs.wait(drips.pause)

    def _answer(self, client: socket.socket) -> None:
        assert self.answer is not None
        with client, suppress(OSError):
            client.recv(1 << 10)
            client.sendall(_NO_TLS)
            client.recv(1 << 10)
            client.sendall(_LET_IN + _SAID + _READY)
            while not self.over and client.recv(1 << 16):
                client.sendall(self.answer)
                while self.more and not self.over:
                    client.sendall(self.more)


def message(kind: bytes, content: bytes) -> bytes:
    """Return one message of the protocol."""
    return kind + struct.pack(">I", 4 + len(content)) + content


def rows_of(*values: bytes) -> bytes:
    """Return an answer of one row of texts to a simple query."""
    described = b"".join(b"a\x00" + struct.pack(">IhIhih", 0, 0, 25, -1, -1, 0) for _ in values)
    row = b"".join(struct.pack(">I", len(value)) + value for value in values)
    count = struct.pack(">H", len(values))
    return message(b"T", count + described) + message(b"D", count + row) + message(b"C", b"SELECT 1\x00") + _READY


def said(text: bytes) -> bytes:
    """Return an error."""
    return message(b"E", b"SERROR\x00VERROR\x00CXX000\x00M" + text + b"\x00\x00") + _READY


@contextmanager
def way_to(url: str, *, answer: bytes | None = None, more: bytes = b"") -> Generator[tuple[Way, str]]:
    """Give the way, and the connection string that takes it."""
    parts = conninfo_to_dict(url)
    server = (str(parts["host"]), int(str(parts["port"])))
    with accepting(Way([server], answer=answer, more=more)) as way:
        yield way, make_conninfo(url, host="127.0.0.1", port=way.port)
