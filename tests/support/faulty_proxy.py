"""A TCP proxy on loopback before one server or several: it deals connections round, and delays, withholds and cuts."""

import select
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeVar

CONNECT_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
_NEVER: Final = threading.Event()


@dataclass
class FaultyProxy:
    """While `hangs` is set, nothing passes in either direction and connections stay open."""

    servers: Sequence[tuple[str, int]]
    hangs: threading.Event = field(default_factory=threading.Event, kw_only=True)
    far: float = field(default=0.0, kw_only=True)
    """Everything takes so many seconds, in both directions."""
    listener: socket.socket = field(
        default_factory=lambda: socket.create_server(("127.0.0.1", 0), backlog=128), kw_only=True
    )
    over: bool = field(default=False, kw_only=True)
    _cuts: int = field(default=0, kw_only=True)
    _dealt: "count[int]" = field(default_factory=count, kw_only=True)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def cut(self) -> None:
        """End every connection."""
        self._cuts += 1

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        """Bring what comes to a server, and its answers back, until one of them closes or all are cut."""
        cuts = self._cuts
        with client, suppress(OSError):
            server = self._connect()
            if server is None:
                return
            with server:
                carry = self.carrier(client, server)
                while not self.over and cuts == self._cuts:
                    readable, _, _ = select.select([client, server], [], [], _LOOK_SECONDS)
                    if self.hangs.is_set():
                        # The data stays where it is.
                        _NEVER.wait(_LOOK_SECONDS)
                        continue
                    for one in readable:
                        data = one.recv(1 << 16)
                        if not data:
                            return
                        carry(one, data)

    def carrier(self, client: socket.socket, server: socket.socket) -> Callable[[socket.socket, bytes], None]:
        """Return what brings the data of one of these two to the other."""

        def carry(source: socket.socket, data: bytes) -> None:
            self.hangs.wait(self.far)
            (server if source is client else client).sendall(data)

        return carry

    def _connect(self) -> socket.socket | None:
        """Connect to the server whose turn it is, or to the next one that takes connections."""
        first = next(self._dealt)
        for turn in range(first, first + len(self.servers)):
            with suppress(OSError):
                return socket.create_connection(self.servers[turn % len(self.servers)], CONNECT_SECONDS)
        return None


P = TypeVar("P", bound=FaultyProxy)


@contextmanager
def accepting(proxy: P) -> Generator[P]:
    """Have a proxy accept connections until the end."""
    threading.Thread(target=proxy.accept, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.over = True
        proxy.listener.close()
