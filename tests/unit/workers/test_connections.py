"""The connections that a process of the worker keeps."""

from dataclasses import dataclass

import pytest

from workers.state_store import connections
from workers.state_store.connections import KEPT, KEPT_BY_WORKER


@dataclass
class Opened:
    """A connection."""

    closed: bool = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("most", [KEPT, KEPT_BY_WORKER])
def test_i13_a_process_keeps_few_connections(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each graph has connections of its own, and 16 sinks kept all that the server has."""
    monkeypatch.setattr(connections, "_open", [])
    monkeypatch.setattr(connections, "_kept", KEPT)
    connections.keep(most)
    opened: list[Opened] = []

    def connect() -> Opened:
        opened.append(Opened())
        return opened[-1]

    for graph in [*range(40), 39]:
        with connections._cached("d", "url", f"tidefill:{graph}:1", (), connect):  # pyright: ignore[reportPrivateUsage]
            pass
    assert len(opened) == 40
    assert [one.closed for one in opened] == [True] * (40 - most) + [False] * most
