"""What needs somebody: what is broken, stale, failed or held up, each with the way out. The worst comes first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from service.domain.job import JobState
from service.domain.waiting import Reason
from service.domain.words import capital
from service.operations.sources.shown import SourceView
from service.operations.status.models import JobView
from service.pages.words import ago
from service.protocol.ids import JobId

_WAYS: Final[Mapping[Reason, tuple[str, str]]] = MappingProxyType(
    {
        Reason.QUEUE: ("Parameters: max_concurrent_creating_streaming_jobs", "/parameters"),
        Reason.RECOVERY: ("The events say what failed", "/events"),
        Reason.WORKER: ("Workers", "/workers"),
        Reason.LEADER: ("The events say who led last", "/events"),
        Reason.BARRIER: ("Barriers", "/barriers"),
        Reason.PAUSE: ("Resume all backfills", "#controls"),
        Reason.SOURCE: ("Sources", "/sources"),
    }
)
"""The way out of each reason: a text and an address. Other reasons are resolved on the page of the job."""
_EXPECTED: Final = frozenset({Reason.START, Reason.FIRST_BARRIER, Reason.STOP})
"""Every job waits for these, for a moment."""
TOGETHER: Final = 3
"""From how many jobs on those that wait for the same thing are one trouble, which names this many of them."""
_RANKS: Final = MappingProxyType({"not ready": 0, "broken": 1, "failed": 2, "stale": 3, "waits": 4})


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that needs somebody. `word` is its kind; `about` its name, with an address; then the way out."""

    word: str
    about: str
    address: str
    text: str
    since: str
    way: str
    way_address: str


def troubles(
    checks: Mapping[str, str],
    jobs: Sequence[JobView],
    sources: Sequence[SourceView],
    stuck: Mapping[JobId, str],
    now: datetime,
) -> tuple[Trouble, ...]:
    """Return all of them, by rank. Many jobs that wait for the same thing are one."""
    found = [*_of_checks(checks), *_together(_of_jobs(jobs, stuck, now)), *_of_sources(sources, now)]
    return tuple(sorted(found, key=lambda one: _RANKS[one.word]))


def _of_checks(checks: Mapping[str, str]) -> Iterator[Trouble]:
    ways = {"worker": ("Workers", "/workers"), "barriers": ("Barriers", "/barriers"), "graph": ("Events", "/events")}
    for name, said in checks.items():
        if said != "ok":
            state, colon, why = said.partition(":")
            text = f"{capital(state)}{colon}{why}" if name == "graph" else said
            chosen = ways.get(name, ("Events", "/events"))
            yield Trouble("not ready", name.replace("_", " "), "/events", text, "", *chosen)


def _of_jobs(jobs: Sequence[JobView], stuck: Mapping[JobId, str], now: datetime) -> Iterator[Trouble]:
    ids = {job.name: job.id for job in jobs}
    for job in jobs:
        address = f"/jobs/{job.id}"
        if job.broken is not None:
            one = job.broken
            way = {"broken": ("Read the table again", address), "failed": ("Read why, and drop it", address)}
            cause = ids.get(one.because_of or "")
            inherited = (f"{one.because_of} has the fault", f"/jobs/{cause}") if cause else ("The job's page", address)
            chosen = way.get(one.state, inherited)
            yield Trouble(one.state, job.name, address, one.reason, ago(one.since, now), *chosen)
        elif job.state is JobState.FAILED:
            since = ago(job.finished_at, now)
            yield Trouble("failed", job.name, address, job.error or "it failed", since, "Read why", address)
        elif job.id in stuck:
            yield Trouble("waits", job.name, address, stuck[job.id], "", "The job's page", address)
        elif job.waiting is not None and job.waiting.reason not in _EXPECTED:
            chosen = _WAYS.get(job.waiting.reason, ("The job's page", address))
            yield Trouble("waits", job.name, address, job.waiting.text, ago(job.waiting.since, now), *chosen)


def _together(found: Iterable[Trouble]) -> Iterator[Trouble]:
    alike: dict[tuple[str, ...], list[Trouble]] = {}
    for one in found:
        shared = one.word == "waits" and one.way_address != one.address
        alike.setdefault((one.text, one.way_address) if shared else (one.address,), []).append(one)
    for same in alike.values():
        if len(same) < TOGETHER:
            yield from same
            continue
        names, rest = ", ".join(one.about for one in same[:TOGETHER]), len(same) - TOGETHER
        told = f"{same[0].text}: {names}" + (f" and {rest:,} more" if rest else "")
        yield replace(same[0], about=f"{len(same):,} jobs", address="/jobs", text=told)


def _of_sources(sources: Sequence[SourceView], now: datetime) -> Iterator[Trouble]:
    for one in sources:
        if one.waiting is not None:
            since = ago(one.reported_at, now)
            yield Trouble("stale", one.name, "/sources", one.waiting, since, "Sources", "/sources")
        if one.retention is not None:
            text = f"the log that its slot retains: {one.retention}"
            yield Trouble("stale", one.name, "/sources", text, "", "Sources", "/sources")
