"""A service that can be told to die, or to stop, at a named point: `python -m tests.support.faulty_service`.

The product knows nothing of it: two of its adapters are replaced, before it starts, by some that look for a file with
the name of the point they have reached, a signal and the session to send it to. The file is removed when it is sent.
"""

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

from service import bootstrap
from service.meta_store import stores
from service.meta_store.barriers.barriers import PostgresBarriers
from service.protocol.barrier import Barrier
from service.protocol.ids import Epoch, GraphId, RelationId, Term, WorkerId
from service.protocol.relation import Relation
from service.serving.tables import PostgresTables
from service.settings import read_settings
from tests.support.processes import signal_session

FAULT: Final = "TIDEFILL_TEST_FAULT"
"""Names the file."""


class FaultyBarriers(PostgresBarriers):
    """Meets its fault as a worker that waits is given statements to carry out, and between collect and commit."""

    async def for_worker(
        self, worker: WorkerId, taken: Mapping[GraphId, Epoch] = MappingProxyType({})
    ) -> Barrier | None:
        found = await super().for_worker(worker, taken)
        if found is not None and found.statements:
            pass_point("statements_given")
        return found

    async def commit(self, graph: GraphId, epoch: Epoch, *, now: datetime) -> None:
        await super().commit(graph, epoch, now=now)
        pass_point("before_commit")


class FaultyTables(PostgresTables):
    """Meets its fault between commit and publish, after it, between fence and roll back, and after that."""

    async def publish(
        self, graph: GraphId, epoch: Epoch, *, term: Term, created: Sequence[Relation]
    ) -> Mapping[RelationId, str]:
        pass_point("before_publish")
        refused = await super().publish(graph, epoch, term=term, created=created)
        pass_point("after_publish")
        return refused

    async def roll_back(self, relations: Collection[RelationId], graph: GraphId, epoch: Epoch, *, term: Term) -> None:
        pass_point("before_roll_back")
        await super().roll_back(relations, graph, epoch, term=term)
        pass_point("after_roll_back")


def order_fault(file: Path, point: str, number: signal.Signals = signal.SIGKILL, *, session: int | None = None) -> None:
    """Have the service that looks at `file` meet a signal at `point`, or send it to a whole session."""
    file.write_text(f"{point} {number.name} {session or 'self'}.")


def pass_point(point: str) -> None:
    """Meet, or send, the signal that waits at this point."""
    path = Path(os.environ[FAULT])
    # The full stop says that all of it was written.
    if path.exists() and (order := path.read_text()).startswith(f"{point} ") and order.endswith("."):
        path.unlink()
        _, name, session = order.rstrip(".").split()
        if session == "self":
            os.kill(os.getpid(), signal.Signals[name])
        else:
            signal_session(int(session), signal.Signals[name])


if __name__ == "__main__":
    bootstrap.PostgresTables = FaultyTables
    stores.PostgresBarriers = FaultyBarriers
    bootstrap.serve(read_settings())
