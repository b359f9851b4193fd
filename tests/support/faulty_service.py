"""A service that can be told to die, or to stop, at a named point: `python -m tests.support.faulty_service`.

The product knows nothing of it: two of its adapters are replaced, before it starts, by some that look for a file with
the name of the point they have reached and of a signal. The file is removed and the process sent the signal.
"""

import os
import signal
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from service import bootstrap
from service.meta_store import stores
from service.meta_store.barriers import PostgresBarriers
from service.protocol.ids import Epoch, GraphId, RelationId, Term
from service.protocol.relation import Relation
from service.serving.tables import PostgresTables
from service.settings import read_settings

FAULT: Final = "TIDEFILL_TEST_FAULT"
"""Names the file."""


class FaultyBarriers(PostgresBarriers):
    """Meets its fault between collect and commit."""

    async def commit(self, graph: GraphId, epoch: Epoch, *, now: datetime) -> None:
        await super().commit(graph, epoch, now=now)
        pass_point("before_commit")


class FaultyTables(PostgresTables):
    """Meets its fault between commit and publish, after it, between fence and roll back, and after that."""

    async def publish(self, graph: GraphId, epoch: Epoch, *, term: Term, created: Sequence[Relation]) -> None:
        pass_point("before_publish")
        await super().publish(graph, epoch, term=term, created=created)
        pass_point("after_publish")

    async def roll_back(self, relations: Collection[RelationId], epoch: Epoch, *, term: Term) -> None:
        pass_point("before_roll_back")
        await super().roll_back(relations, epoch, term=term)
        pass_point("after_roll_back")


def order_fault(file: Path, point: str, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the service that looks at `file` meet a signal at `point`."""
    file.write_text(f"{point} {number.name}.")


def pass_point(point: str) -> None:
    """Meet the signal that waits at this point."""
    path = Path(os.environ[FAULT])
    # The full stop says that all of it was written.
    if path.exists() and (order := path.read_text()).startswith(f"{point} ") and order.endswith("."):
        path.unlink()
        os.kill(os.getpid(), signal.Signals[order.split()[1].rstrip(".")])


if __name__ == "__main__":
    bootstrap.PostgresTables = FaultyTables
    stores.PostgresBarriers = FaultyBarriers
    bootstrap.serve(read_settings())
