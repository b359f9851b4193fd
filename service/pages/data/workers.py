"""Workers, and in a cluster their launches: what holds one up, and how the last ones ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from service.domain.launching import Launch
from service.operations.status import history
from service.pages.asking import Ask
from service.pages.words import ago, instant
from service.ports.records import WorkerRecord
from service.protocol.ids import DATABASE_GRAPH, GraphId

ENDED_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker. `state` is `alive`, `leaving`, or `ended`; `seen` is how long ago it was heard of. `alone`: it
    serves one job only, which is `job`, by id and name, unless its graph has ended.
    """

    id: str
    alone: bool
    job: tuple[int, str] | None
    graph: int
    host: str
    pid: int
    slots: int
    state: str
    serving: bool
    registered: str
    seen: str


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers that are alive and some that ended. `launches` are (worker, graph, attempt, state, text, since)."""

    workers: tuple[Worker, ...]
    launches: tuple[tuple[str, int, int, str, str, str], ...]
    moves: bool = False


async def read(ask: Ask) -> Workers:
    """Read both lists."""
    found = await history.workers(ask.world)
    shown = [*(one for one in found if one.alive), *[one for one in reversed(found) if not one.alive][:ENDED_SHOWN]]
    launches = [_launch(one, ask.now) for one in reversed(await history.launches(ask.world))]
    jobs = await history.jobs_of(ask.world, {one.graph for one in shown})
    named = {graph: (int(one.id), one.name) for graph, one in jobs.items()}
    return Workers(workers(shown, ask.now, named), tuple(launches))


def workers(
    found: Sequence[WorkerRecord], now: datetime, jobs: Mapping[GraphId, tuple[int, str]]
) -> tuple[Worker, ...]:
    """Return workers as rows."""
    return tuple(
        Worker(
            id=str(one.worker),
            alone=one.graph != DATABASE_GRAPH,
            job=jobs.get(one.graph),
            graph=one.graph,
            host=one.host,
            pid=one.pid,
            slots=one.parallelism,
            state=("leaving" if one.leaving else "alive") if one.alive else "ended",
            serving=one.serving and one.alive,
            registered=instant(one.registered_at),
            seen=ago(one.seen_at, now),
        )
        for one in found
    )


def _launch(one: Launch, now: datetime) -> tuple[str, int, int, str, str, str]:
    if one.end is not None:
        return str(one.worker), one.graph, one.attempt, "ended", one.end.reason, ago(one.end.at, now)
    if one.held is not None:
        return str(one.worker), one.graph, one.attempt, "held up", one.held.text, ago(one.held.since, now)
    state = "asked for" if one.posted_at is None else "started"
    return str(one.worker), one.graph, one.attempt, state, "", ago(one.asked_at, now)
