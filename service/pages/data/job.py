"""One job: its phases, its scans and stages, what limits them, and what may be done about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from service.domain.errors import MetaError
from service.domain.job import CREATING, TERMINAL, JobState
from service.domain.words import UNLIMITED, speed
from service.operations.statements import dispatch
from service.operations.status import history, listing
from service.operations.status.models import FragmentView, JobDetail, JobView, LimitChangeView
from service.operations.status.setbacks import setbacks
from service.operations.world import World
from service.pages.asking import Ask
from service.pages.data.bars import Bar, bar, held_up, job_bar, moving
from service.pages.data.heat import Strip, strip
from service.pages.data.jobs import not_current, why_of
from service.pages.data.plan import FREE, explained
from service.pages.data.recent import recent
from service.pages.data.sql import SqlPage, fault_of, shown
from service.pages.data.steps import Steps, steps
from service.pages.running import Verification
from service.pages.words import ago, facts, instant, number
from service.ports.records import Event
from service.protocol.plan import FragmentKind
from service.protocol.relation import RelationKind

EVENTS_SHOWN: Final = 30
CHANGES_SHOWN: Final = 200
VNODES_MAX: Final = 1_000
SCANS_WITH_STRIP: Final = 8
_ENDED: Final = TERMINAL | {JobState.FAILED}


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan or a stage. `strip` is None for one that is not among the first `SCANS_WITH_STRIP`."""

    id: int
    kind: str
    reads: str
    scan_type: str
    bar: Bar
    speed: str
    limit: str
    auto: str
    state: str
    actors: int
    strip: Strip | None


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of the limit of one scan: a plot, and the newest ones as a table (time, before, after, reason)."""

    reads: str
    plot: Steps
    rows: tuple[tuple[str, int, int, str], ...]


@dataclass(frozen=True, slots=True)
class Controls:
    """What may be done with the job in its present state, whoever asks."""

    limit: bool
    rescale: bool
    cancel: bool
    verify: bool
    reload: bool

    @property
    def any(self) -> bool:
        """Whether there is anything to do."""
        return self.limit or self.rescale or self.cancel or self.verify or self.reload


@dataclass(frozen=True, slots=True)
class JobPage:
    """A job. `facts` are pairs (name, text); `phases` are triples (phase, instant, how long ago)."""

    job: JobView
    bar: Bar | None
    facts: tuple[tuple[str, str], ...]
    phases: tuple[tuple[str, str, str], ...]
    fault: str
    """The state of a relation that is not kept current in one word, such as `broken`."""
    why: str
    since: str
    until: str
    scans: tuple[Scan, ...]
    order: tuple[tuple[str, str], ...]
    engines: tuple[tuple[str, str, str], ...]
    changes: tuple[Changes, ...]
    events: tuple[tuple[str, str, str], ...]
    controls: Controls
    verification: Verification | None
    moves: bool
    plan: SqlPage | None = None
    """The plan that the statement would get now, if it was asked for."""


async def read(ask: Ask) -> JobPage:
    """Read the job of the path, by id or by name. Raises NotFound."""
    world = ask.world
    wanted = await listing.job_called(world, ask.text("job"))
    detail = await listing.job(world, wanted)
    strips = await _strips(world, [one for one in detail.fragments if _is_scan(one)])
    limits = (await listing.limit_history(world, wanted, limit=CHANGES_SHOWN, before=None)).items
    newest, _ = await recent(ask)
    stuck = (await setbacks(world, [detail.job])).get(wanted)
    running = ask.verifications.of(wanted, ask.caller.actor)
    found = page(detail, strips, limits, events_of(detail.job, newest), running, ask.now, stuck)
    worker = await history.worker_of(world, wanted)
    if worker is not None:
        found = replace(found, facts=(*found.facts, ("Worker", f"{worker.worker} on {worker.host}")))
    return replace(found, plan=await _plan(ask, detail.job)) if ask.text("plan") else found


def page(
    detail: JobDetail,
    strips: Mapping[int, Strip],
    limits: Sequence[LimitChangeView],
    events: Sequence[Event],
    verification: Verification | None,
    now: datetime,
    stuck: str | None = None,
) -> JobPage:
    """Return what the page shows."""
    job = detail.job
    why, since = why_of(job, stuck)
    until = None if job.waiting is None else job.waiting.until
    rate, eta = moving(job)
    return JobPage(
        job=job,
        bar=job_bar(job),
        facts=(*(_facts(job)), *((("Rate", rate), ("Time left", eta)) if rate else ())),
        phases=phases(job, now),
        fault=not_current(job.state, job.broken),
        why=why,
        since=ago(since, now),
        until="" if until is None else instant(until),
        scans=tuple(
            _scan(one, strips.get(one.id), held=held_up(job), ended=job.state in _ENDED) for one in detail.fragments
        ),
        order=detail.backfill_order,
        engines=tuple(
            (str(engine), number(work.rows), number(work.jobs)) for engine, work in detail.engines.items() if work.jobs
        ),
        changes=_changes(detail.fragments, limits),
        events=tuple((instant(one.at), one.kind, facts(one.facts)) for one in reversed(events[-EVENTS_SHOWN:])),
        controls=controls(job, detail.fragments),
        verification=verification,
        moves=job_bar(job) is not None or (verification is not None and verification.runs),
    )


def controls(job: JobView, fragments: Sequence[FragmentView]) -> Controls:
    """Return what the state of a job allows. The operations decide again."""
    alive = job.state in CREATING or job.state is JobState.CREATED
    scans = [one for one in fragments if _is_scan(one)]
    return Controls(
        limit=alive and not all(one.finished for one in scans),
        rescale=alive and bool(scans),
        cancel=job.state in CREATING,
        verify=job.state is JobState.CREATED and job.kind is not RelationKind.SINK,
        reload=job.broken is not None and job.broken.state == "broken",
    )


def phases(job: JobView, now: datetime) -> tuple[tuple[str, str, str], ...]:
    """Return the phases that a job has reached, each with its instant and how long ago that was."""
    # A job that fails after it was created keeps the instant of its creation.
    failed = "failed" if job.broken is None else "created"
    end = {JobState.CREATED: "created", JobState.FAILED: failed, JobState.CANCELLED: "cancelled"}
    known = (
        ("asked for", job.initialized_at),
        ("started", job.started_at),
        (end.get(job.state, "ended"), job.finished_at),
        (f"{job.state} since", job.state_since if job.state_since != job.finished_at else None),
    )
    return tuple((name, instant(at), ago(at, now)) for name, at in known if at is not None)


def events_of(job: JobView, events: Sequence[Event]) -> list[Event]:
    """Return the events that are about a job or its relation."""

    def about(event: Event) -> bool:
        given = event.facts
        return (
            given.get("job") == job.id or job.id in _listed(given.get("jobs")) or given.get("relation") == job.relation
        )

    return [event for event in events if about(event)]


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()  # pyright: ignore[reportUnknownVariableType]


def _facts(job: JobView) -> tuple[tuple[str, str], ...]:
    known = (
        ("Kind", job.kind),
        ("Phase", job.progress.phase),
        ("Asked for by", job.created_by),
        ("Parallelism", job.parallelism),
        ("Parallelism of the backfill", job.backfill_parallelism),
        ("Own graph", job.own_graph),
        ("Resource group", job.resource_group),
        ("Recoveries", f"{job.recoveries:,}"),
        ("Failures", f"{job.failures:,}"),
    )
    return tuple((name, str(value)) for name, value in known if value is not None)


def _is_scan(one: FragmentView) -> bool:
    return one.kind not in {FragmentKind.DML, FragmentKind.OPERATOR}


async def _plan(ask: Ask, job: JobView) -> SqlPage | None:
    statement = explained(job.statement)
    if statement is None:
        return None
    try:
        outcome = await dispatch.run(ask.world, statement, session={}, asked_by=ask.caller)
    except MetaError as error:
        return SqlPage("", {}, fault=fault_of(error, "", 0))
    return shown("", replace(outcome, rows=tuple((str(line).replace(FREE, job.name),) for (line,) in outcome.rows)))


async def _strips(world: World, scans: Sequence[FragmentView]) -> Mapping[int, Strip]:
    found: dict[int, Strip] = {}
    for one in scans[:SCANS_WITH_STRIP]:
        found[one.id] = strip((await listing.vnodes(world, one.id, after=0, limit=VNODES_MAX)).items)
    return found


def _scan(one: FragmentView, cells: Strip | None, *, held: bool, ended: bool) -> Scan:
    scans = _is_scan(one)
    return Scan(
        id=one.id,
        kind=one.kind.replace("_", " ").lower(),
        reads=one.upstream or "",
        scan_type=(one.scan_type or "").replace("_", " ").lower(),
        bar=Bar(100.0, "finished") if one.finished and not one.rows else bar(one.rows, one.total, None),
        speed=speed(one.rows_per_second) if scans and not one.finished and not held and not ended else "",
        limit=_limit(one) if scans else "",
        auto=_auto(one),
        state="" if not scans else "stopped" if ended and not one.finished else _state(one, held=held),
        actors=len(one.actors),
        strip=cells,
    )


def _limit(one: FragmentView) -> str:
    limit = UNLIMITED if one.rate_limit is None else f"{one.rate_limit:,} rows/s and actor"
    return f"{limit} (auto)" if one.auto is not None else limit


def _auto(one: FragmentView) -> str:
    if one.auto is None or one.auto.reason is None:
        return ""
    return f"{one.auto.phase}, {one.auto.move or 'no move'}: {one.auto.reason}"


def _state(one: FragmentView, *, held: bool) -> str:
    if one.finished:
        return "finished"
    if one.waiting:
        return "after " + (", ".join(one.waits_for) or "the next barrier")
    if one.rate_limit == 0:
        return "paused"
    return "waits" if held else "reading"


def _changes(fragments: Sequence[FragmentView], limits: Sequence[LimitChangeView]) -> tuple[Changes, ...]:
    """Return the changes by scan. `limits` are newest first."""
    found: list[Changes] = []
    for one in fragments:
        own = [change for change in limits if change.fragment == one.id]
        if own:
            plot = steps([(change.at.timestamp(), float(change.after)) for change in reversed(own)])
            rows = tuple((instant(each.at), each.before, each.after, each.reason) for each in own[:10])
            found.append(Changes(one.upstream or str(one.id), plot, rows))
    return tuple(found)
