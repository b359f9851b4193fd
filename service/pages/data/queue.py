"""The jobs that are queued or being created, in the order in which they start, and for what each of them waits."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.operations import parameters
from service.operations.status import listing, staleness
from service.operations.status.models import DdlProgress
from service.pages.asking import Ask
from service.pages.data.bars import Bar, bar
from service.pages.words import ago


@dataclass(frozen=True, slots=True)
class Waiter:
    """A job. `fault` is the state of a relation that is not kept current, such as `broken`. `place` is None once it has
    started. `waits` are the scans that the backfill order delays, in words.
    """

    id: int
    name: str
    state: str
    fault: str
    place: int | None
    bar: Bar
    why: str
    since: str
    waits: tuple[str, ...]
    by: str


@dataclass(frozen=True, slots=True)
class Queue:
    """`limit` is how many jobs are created at the same time, 0 for no limit."""

    rows: tuple[Waiter, ...]
    limit: int
    moves: bool


async def read(ask: Ask) -> Queue:
    """Read the queue."""
    known = await parameters.known(ask.world, ask.caller.role)
    found = ordered(await listing.ddl_progress(ask.world))
    faults = await staleness.degraded_of(ask.world)
    rows = tuple(
        Waiter(
            id=one.ddl_id,
            name=one.name,
            state=one.state,
            fault=faults.get(one.name, ""),
            place=one.queue_place,
            bar=bar(one.rows, one.total, one.percent),
            why=one.waiting.text if one.waiting is not None else one.waiting_for or "",
            since="" if one.waiting is None else ago(one.waiting.since, ask.now),
            waits=tuple(
                f"{each.upstream} after {', '.join(each.waits_for) or 'the next barrier'}" for each in one.waits
            ),
            by=one.created_by or "",
        )
        for one in found
    )
    return Queue(rows, known.max_concurrent_creating_streaming_jobs, moves=bool(rows))


def ordered(found: Sequence[DdlProgress]) -> list[DdlProgress]:
    """Return the jobs that have started, then those of the queue by place."""
    return sorted(found, key=lambda one: (one.queue_place or 0, one.ddl_id))
