"""The launches of the meta store in memory; part of `fake_meta_store`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from service.domain.launching import Launch
from service.protocol.ids import WorkerId
from tests.support.fake_meta_tables import Tables, printable


@dataclass(frozen=True, slots=True)
class FakeLaunches:
    tables: Tables

    async def all(self) -> Sequence[Launch]:
        return sorted(self.tables.launches.values(), key=lambda one: (one.graph, one.attempt))

    async def put(self, launch: Launch) -> None:
        found = (
            one for one in self.tables.launches.values() if one.graph == launch.graph and one.attempt == launch.attempt
        )
        assert all(one.worker == launch.worker for one in found), "attempt of a graph is one"
        held = launch.held and replace(launch.held, text=printable(launch.held.text))
        end = launch.end and replace(launch.end, reason=printable(launch.end.reason))
        self.tables.launches.put(launch.worker, replace(launch, held=held, end=end))

    async def forget(self, workers: Collection[WorkerId]) -> None:
        for worker in workers:
            self.tables.launches.take(worker)
