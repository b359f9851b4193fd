"""The first page: what needs somebody, the state of the service in one strip, and the graph of relations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.job import JobState
from service.domain.words import capital
from service.operations.sources import shown
from service.operations.status import history, lineage, listing, staleness
from service.operations.status.models import BarrierView, GraphDetail, JobView
from service.operations.status.setbacks import setbacks
from service.operations.world import World
from service.pages.asking import Ask
from service.pages.data.bars import reads_history
from service.pages.data.graph import Graph, graph
from service.pages.data.jobs import FILTERS
from service.pages.data.trouble import Trouble, troubles
from service.pages.words import millis
from service.ports.records import WorkerRecord

LOOKED_AT: Final = 100
"""How many barriers the latencies are taken of."""
TROUBLES_SHOWN: Final = 30
JOBS_MOVING_MAX: Final = 300
"""With more jobs than these the page is read again less often: a thousand take 120 ms of processor."""
_PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Overview:
    """`strip` are pairs (name, text). `troubles` are at most `TROUBLES_SHOWN` of `troubles_count`."""

    strip: tuple[tuple[str, str], ...]
    paused: bool
    troubles: tuple[Trouble, ...]
    troubles_count: int
    graph: Graph
    moves: bool


async def read(ask: Ask) -> Overview:
    """Read everything, each list in one transaction."""
    world = ask.world
    checks = await ask.checks()
    jobs = await all_jobs(world)
    sources = await shown.sources(world)
    stuck = await setbacks(world, jobs)
    found = troubles(checks, jobs, sources, stuck, ask.now)
    lapses = await staleness.lapses_of(world) if any(job.broken for job in jobs) else ()
    (state,) = await history.graphs(world)
    workers = [one for one in await history.workers(world) if one.alive]
    barriers = (await history.barriers(world, limit=LOOKED_AT, before=None)).items
    leads = _leads(checks.get("leader", "ok"), here=ask.checks.leads())
    return Overview(
        strip=strip(leads, state, workers, barriers, jobs),
        paused=state.paused,
        troubles=found[:TROUBLES_SHOWN],
        troubles_count=len(found),
        graph=graph(await lineage.lineage(world), {job.id: job for job in jobs}, stuck, lapses),
        moves=len(jobs) <= JOBS_MOVING_MAX and any(map(reads_history, jobs)),
    )


async def all_jobs(world: World) -> list[JobView]:
    """Read every job that was neither dropped nor cancelled."""
    found: list[JobView] = []
    after: int | None = 0
    while after is not None:
        page = await listing.jobs(world, FILTERS["present"], after=after, limit=_PAGE)
        found += page.items
        after = None if page.next is None else int(page.next)
    return found


def strip(
    leads: str,
    state: GraphDetail,
    workers: Sequence[WorkerRecord],
    barriers: Sequence[BarrierView],
    jobs: Sequence[JobView],
) -> tuple[tuple[str, str], ...]:
    """Return the state of the service as pairs (name, text)."""
    half, most = (
        quantile([one.latency_ms for one in barriers if one.latency_ms is not None], at) for at in (0.5, 0.99)
    )
    slots = sum(one.parallelism for one in workers)
    queued = sum(job.state is JobState.QUEUED for job in jobs)
    unfinished = sum(map(reads_history, jobs))
    return (
        ("Leader", leads),
        ("Workers", f"{len(workers)} alive, {slots} slots"),
        (
            "Graph",
            f"{capital(state.status)}, {state.recoveries:,} {'recovery' if state.recoveries == 1 else 'recoveries'}",
        ),
        ("Backfills", "paused" if state.paused else "not paused"),
        ("Jobs", f"{len(jobs)}, {unfinished} unfinished"),
        ("Queue", f"{queued} queued"),
        ("Barriers p50", millis(half)),
        ("Barriers p99", millis(most)),
    )


def quantile(values: Sequence[float], at: float) -> float | None:
    """Return the smallest value that at least this share of the values does not exceed; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(int(at * len(ordered)), len(ordered) - 1)]


def _leads(check: str, *, here: bool) -> str:
    if check != "ok":
        return check
    return "this service" if here else "another service"
