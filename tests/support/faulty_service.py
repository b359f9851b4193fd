"""A service that can be told to die at a named point: `python -m tests.support.faulty_service`.

The product knows nothing of it: two of its adapters are replaced, before it starts, by some that look for a file whose
content is the name of the point they have reached. The file is removed and the process killed, as by SIGKILL.
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
    """Dies between collect and commit."""

    async def commit(self, graph: GraphId, epoch: Epoch, *, now: datetime) -> None:
        await super().commit(graph, epoch, now=now)
        die_at("before_commit")


class FaultyTables(PostgresTables):
    """Dies between commit and publish, and between fence and roll back."""

    async def publish(self, graph: GraphId, epoch: Epoch, *, term: Term, created: Sequence[Relation]) -> None:
        die_at("before_publish")
        await super().publish(graph, epoch, term=term, created=created)
        die_at("after_publish")

    async def roll_back(self, relations: Collection[RelationId], epoch: Epoch, *, term: Term) -> None:
        die_at("before_roll_back")
        await super().roll_back(relations, epoch, term=term)


def die_at(point: str) -> None:
    """Die if the file names this point."""
    path = Path(os.environ[FAULT])
    if path.exists() and path.read_text() == point:
        path.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    bootstrap.PostgresTables = FaultyTables
    stores.PostgresBarriers = FaultyBarriers
    bootstrap.serve(read_settings())
