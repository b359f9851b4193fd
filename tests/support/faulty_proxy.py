"""A TCP proxy on loopback before one server or several: it deals connections round, and delays, withholds and cuts."""

import select
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

CONNECT_SECONDS = 5.0


@dataclass
class FaultyProxy:
    """`delay` is added to each piece of data, in seconds. While `black_hole` is set, nothing passes in either direction
    and connections stay open.
    """

    servers: Sequence[int]
    """Ports on loopback."""
    delay: float = 0.0
    black_hole: threading.Event = field(default_factory=threading.Event)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0), backlog=128))
    over: bool = False
    _pause: threading.Event = field(default_factory=threading.Event)
    """Never set."""
    _cuts: int = 0
    _dealt: "count[int]" = field(default_factory=count)

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
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            server = self._connect()
            if server is not None:
                with server:
                    self._pass_on(client, server)

    def _connect(self) -> socket.socket | None:
        """Connect to the server whose turn it is, or to the next one that takes connections."""
        first = next(self._dealt)
        for turn in range(first, first + len(self.servers)):
            with suppress(OSError):
                return socket.create_connection(("127.0.0.1", self.servers[turn % len(self.servers)]), CONNECT_SECONDS)
        return None

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        cuts = self._cuts
        while not self.over and cuts == self._cuts:
            # Within a black hole the data stays where it is.
            readable, _, _ = select.select([client, server], [], [], 0.05)
            if self.black_hole.is_set():
                self._pause.wait(0.05)
                continue
            for one in readable:
                data = one.recv(1 << 16)
                if not data:
                    return
                if self.delay:
                    self._pause.wait(self.delay)
                (server if one is client else client).sendall(data)


@contextmanager
def faulty_proxy(*servers: int) -> Generator[FaultyProxy]:
    proxy = FaultyProxy(servers)
    threading.Thread(target=proxy.accept, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.over = True
        proxy.listener.close()
