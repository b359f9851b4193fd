"""Decide what the workers of a cluster need: which launches end, wait or begin, and which pods are deleted.

A *launch* is one worker of a graph, from the leader's intent to the recorded end. Its row is written before its pod is
created, and the pod has the name of the worker. A leader that dies in between is followed by one that creates the same
pod. A name is never used twice: a graph whose worker has ended gets another launch.

A graph whose worker *goes* gets its next launch before that one ends. A worker goes if it is being evicted, has said
that it leaves, or was made from an old template. `service.domain.barrier` moves the graph once the successor is there.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from service.domain.backoff import Restarts
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId, WorkerId

LEAVING: Final = "leaving"
"""The cause of a pod that is being deleted, by whomever. Its worker still runs until it has ended or its lease has."""
KEPT_FOR: Final = timedelta(hours=1)
KEPT_AT_MOST: Final = 3
"""How many failed pods are kept, for their logs."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Nothing keeps a pod from running, or it runs already.

    `outdated`: its template has changed since. `evicted`: the cluster has announced that it will end the pod.
    """

    outdated: bool = False
    evicted: bool = False


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Something keeps a worker from starting. `cause` is a stable word, `text` may have changing numbers."""

    cause: str
    text: str


@dataclass(frozen=True, slots=True)
class Over:
    """A pod has ended. Its document is still there; `failed` is false if it ended with exit code 0."""

    reason: str
    failed: bool = True


Seen = Runs | HeldUp | Over


@dataclass(frozen=True, slots=True)
class Hold:
    """A cause that holds a launch up, and the instant since which it is the same."""

    cause: str
    text: str
    since: datetime


@dataclass(frozen=True, slots=True)
class End:
    """The recorded end of a launch. `failures` counts the workers of its graph in a row that ended early, including
    this one, and the next launch begins at `due`. `failures` is 0 if the service requested the end.
    """

    at: datetime
    reason: str
    failures: int
    due: datetime


@dataclass(frozen=True, slots=True)
class Launch:
    """One worker of a graph. `posted_at` is None until the cluster has accepted its pod."""

    worker: WorkerId
    graph: GraphId
    attempt: int
    asked_at: datetime
    posted_at: datetime | None = None
    held: Hold | None = None
    end: End | None = None

    def holding(self, found: HeldUp | None, *, now: datetime) -> "Launch":
        """Return the launch with what holds it up now. `since` stays while the cause stays."""
        if found is None:
            return replace(self, held=None)
        since = now if self.held is None or self.held.cause != found.cause else self.held.since
        return replace(self, held=Hold(found.cause, found.text, since))


@dataclass(frozen=True, slots=True)
class OwnJob:
    """A job with a worker of its own, and the profile of that worker. None is the profile of all such jobs."""

    job: JobId
    resource_group: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a decision depends on."""

    now: datetime
    launches: Sequence[Launch]
    """Those of each graph oldest first."""
    seen: Mapping[WorkerId, Seen] | HeldUp
    """The pods of this installation, or why the cluster does not list them."""
    wanted: Collection[GraphId]
    registered: Mapping[WorkerId, datetime]
    """When each known worker registered."""
    alive: Mapping[WorkerId, GraphId]
    """The workers with a valid lease, whoever started them, and their graphs."""
    leaving: Collection[WorkerId]
    """The workers that have said that they are about to end, or have ended since."""
    start_within: timedelta
    """How long a pod may take until its worker registers, the wait for a new node included."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Changes to record in one transaction, and the pods to delete after it."""

    ended: tuple[Launch, ...] = ()
    held: tuple[tuple[Launch, Launch], ...] = ()
    """Launches whose hold is another one, or none any more: as they were, and as they are."""
    begun: tuple[tuple[GraphId, int], ...] = ()
    """The graph and the attempt of each launch to add."""
    forgotten: tuple[WorkerId, ...] = ()
    deleted: Mapping[WorkerId, bool] = field(default_factory=dict[WorkerId, bool])
    """Whether each is killed, or is given the time to end its epoch."""
    changing: bool = False
    """Whether some launch is between two states, so that the next look should come soon."""


def decide(facts: Facts) -> Steps:
    """Return the next steps. Repeatable: steps that were not taken are decided again."""
    ended = {one.worker: over for one in facts.launches if (over := _ended(one, facts)) is not None}
    after = [ended.get(launch.worker, launch) for launch in facts.launches]
    held = ((one, changed) for one in after if one.end is None and (changed := _held(one, facts)) != one)
    going = {launch.worker for launch in after if _goes(launch, facts)}
    deleted = dict(_deletions(after, going, facts))
    begun = tuple(_begun(after, going, facts))
    starting = any(launch.end is None and launch.worker not in facts.alive for launch in after)
    due = any(launch.end is not None and launch.end.due > facts.now for launch in after)
    return Steps(
        ended=tuple(ended.values()),
        held=tuple(held),
        begun=begun,
        forgotten=_forgotten(after, facts),
        deleted=deleted,
        changing=bool(starting or due or begun or deleted or going),
    )


def _ended(launch: Launch, facts: Facts) -> Launch | None:
    """Return the launch with its end, if it has just ended."""
    reason = None if launch.end is not None else _reason(launch, facts)
    if reason is None:
        return None
    if launch.graph not in facts.wanted:
        return replace(launch, held=None, end=End(facts.now, "it is needed no more", 0, facts.now))
    if launch.worker in facts.leaving:
        return replace(launch, held=None, end=End(facts.now, reason, 0, facts.now))
    last = [one.end.failures for one in facts.launches if one.graph == launch.graph and one.end is not None]
    lived = facts.now - facts.registered.get(launch.worker, facts.now)
    restarts = Restarts(last[-1] if last else 0).after(lived, now=facts.now.timestamp())
    due = datetime.fromtimestamp(restarts.not_before, UTC)
    return replace(launch, held=None, end=End(facts.now, reason, restarts.died_young, due))


def _reason(launch: Launch, facts: Facts) -> str | None:
    if not isinstance(facts.seen, HeldUp):
        match facts.seen.get(launch.worker):
            case Over(reason):
                return reason
            case HeldUp(cause, text) if cause == LEAVING and launch.worker not in facts.alive:
                # Its node may be lost, and then nobody removes the pod. Its successor has another name.
                return text
            case None if launch.posted_at is not None:
                return "its pod is gone" if launch.held is None else f"its pod is gone: {launch.held.text}"
            case None if launch.graph not in facts.wanted:
                return "it was never created"
            case _:
                pass
    if launch.worker in facts.registered:
        return None if launch.worker in facts.alive else "it was silent, or hung, and was evicted"
    if launch.posted_at is not None and facts.now - launch.posted_at >= facts.start_within:
        text = "" if launch.held is None else f": {launch.held.text}"
        return f"it did not start within {facts.start_within.total_seconds():.0f} s{text}"
    return None


def _held(launch: Launch, facts: Facts) -> Launch:
    if launch.graph not in facts.wanted:
        return launch
    if isinstance(facts.seen, HeldUp):
        return launch if launch.worker in facts.alive else launch.holding(facts.seen, now=facts.now)
    match facts.seen.get(launch.worker):
        case None:
            return launch  # the cluster refused its pod, or was not asked yet
        case HeldUp() as found:
            return launch.holding(found, now=facts.now)
        case _:
            return launch.holding(None, now=facts.now)


def _goes(launch: Launch, facts: Facts) -> bool:
    """Return whether a worker that has not ended needs a successor already.

    The database graph alone moves to a new template. The history that a serverless job has read is worth more.
    """
    if launch.end is not None or launch.graph not in facts.wanted:
        return False
    if launch.worker in facts.leaving:
        return True
    match None if isinstance(facts.seen, HeldUp) else facts.seen.get(launch.worker):
        case HeldUp(cause, _):
            return cause == LEAVING
        case Runs(outdated, evicted):
            return evicted or (outdated and launch.graph == DATABASE_GRAPH)
        case _:
            return False


def _served(launches: Sequence[Launch], going: Collection[WorkerId], facts: Facts) -> Collection[GraphId]:
    """Return the graphs with a worker that is alive and stays."""
    over = {launch.worker for launch in launches if launch.end is not None}
    return {graph for worker, graph in facts.alive.items() if worker not in {*over, *going, *facts.leaving}}


def _begun(launches: Sequence[Launch], going: Collection[WorkerId], facts: Facts) -> Iterator[tuple[GraphId, int]]:
    newest = {launch.graph: launch for launch in launches}
    opened = {launch.graph for launch in launches if launch.end is None and launch.worker not in going}
    served = _served(launches, going, facts)
    for graph in facts.wanted:
        if graph in opened or graph in served:
            continue
        last = newest.get(graph)
        if last is None or last.end is None or last.end.due <= facts.now:
            yield graph, 1 if last is None else last.attempt + 1


def _deletions(
    launches: Sequence[Launch], going: Collection[WorkerId], facts: Facts
) -> Iterator[tuple[WorkerId, bool]]:
    if isinstance(facts.seen, HeldUp):
        return
    of = {launch.worker: launch for launch in launches}
    kept = _kept(launches, facts.seen, facts.now)
    served = _served(launches, going, facts)
    for worker, seen in facts.seen.items():
        launch = of.get(worker)
        needed = launch is not None and launch.end is None and launch.graph in facts.wanted
        leaving = isinstance(seen, HeldUp) and seen.cause == LEAVING
        replaced = launch is not None and worker in going and launch.graph in served
        if (needed and not replaced) or leaving or worker in kept:
            continue
        yield worker, launch is not None and launch.graph in facts.wanted and not replaced


def _kept(launches: Sequence[Launch], seen: Mapping[WorkerId, Seen], now: datetime) -> Collection[WorkerId]:
    """Return the newest failed pods, which are kept for a while."""
    failed: list[tuple[datetime, WorkerId]] = []
    for launch in launches:
        found = seen.get(launch.worker)
        if launch.end is not None and now - launch.end.at < KEPT_FOR and isinstance(found, Over) and found.failed:
            failed.append((launch.end.at, launch.worker))
    return {worker for _, worker in sorted(failed)[-KEPT_AT_MOST:]}


def _forgotten(launches: Sequence[Launch], facts: Facts) -> tuple[WorkerId, ...]:
    """Return old launches without pods. The newest of a wanted graph stays, because it has the number of attempts."""
    if isinstance(facts.seen, HeldUp):
        return ()
    newest = {launch.graph: launch.worker for launch in launches if launch.graph in facts.wanted}
    return tuple(
        launch.worker
        for launch in launches
        if launch.end is not None
        and launch.worker not in facts.seen
        and facts.now - launch.end.at >= KEPT_FOR
        and newest.get(launch.graph) != launch.worker
    )
