"""Show live progress, with one bar for each job that is being created, until none is."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Event
from typing import Any, Final, Protocol, Self

from service.cli import output
from service.cli.client import Service
from service.domain.words import span, speed

INTERVAL_SECONDS: Final = 0.5
"""Half of a barrier interval. Progress changes with every checkpoint, so it is shown at most this much late."""

Pause = Callable[[float], object]
Progress = Mapping[str, Any]
"""A row of `/v1/ddl-progress`, or a row that `elapsed` made."""
_HIDDEN: Final = re.compile(r"__(.+)_([1-9][0-9]*)")
NOTHING: Final = "nothing is being created"


class View(Protocol):
    """Shows the progress of jobs while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...

    def show(self, jobs: Sequence[Progress], /) -> None:
        """Show the present progress of these jobs."""

    def end(self, job: Mapping[str, Any], /) -> None:
        """Show how a job ended."""


def watch(
    service: Service, *, jobs: Collection[int] | None, follow: bool, as_json: bool, pause: Pause | None = None
) -> bool:
    """Show progress until no job is being created (`follow`: for ever), of these jobs or (None) of all.

    Return whether all of them were created.
    """
    wait = pause or Event().wait
    watched = set(jobs or ())
    ends: list[Mapping[str, Any]] = []
    with _JsonView() if as_json else progress_view() as view:
        while True:
            shown = [found for found in service.items("/v1/ddl-progress") if jobs is None or found["ddl_id"] in jobs]
            view.show(shown)
            creating = {found["ddl_id"] for found in shown}
            gone = [_job(service, one) for one in sorted(watched - creating)]
            # A job's progress ends a moment before the epoch that finished it is published. Until then the job is
            # Creating.
            new = [found for found in gone if found["state"] != "Creating"]
            watched = (watched | creating) - {found["id"] for found in new}
            for end in new:
                view.end(end)
            ends += new
            if not watched and not follow:
                break
            wait(INTERVAL_SECONDS)
        if not ends and not as_json:
            output.say(NOTHING)
    return all(end["state"] == "Created" for end in ends)


def _job(service: Service, job: int) -> Mapping[str, Any]:
    return service.get(f"/v1/jobs/{job}")["job"]


class _JsonView:
    """Prints one line of JSON for each poll."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        return

    def show(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        output.say_json(jobs)

    def end(self, job: Mapping[str, Any]) -> None:
        output.say_json(job)


class _LineView:
    """Prints a line for each job whose progress has changed, as a log needs it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._last: dict[int, str] = {}
        self._say = say

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        return

    def show(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        for job in jobs:
            line = f"{job['name']}: {job['progress']} {beside(job)}".rstrip()
            if self._last.get(job["ddl_id"]) != line:
                self._last[job["ddl_id"]] = line
                self._say(line)

    def end(self, job: Mapping[str, Any]) -> None:
        self._say(end_text(job))


def progress_view(*, errors: bool = False) -> View:
    """Return bars on a terminal, otherwise lines; on standard output, or on standard error with `errors`."""
    if output.is_terminal(errors=errors):
        from service.cli.bars import BarView  # noqa: PLC0415 - a terminal library takes long to load

        return BarView(errors=errors)
    return _LineView(output.note if errors else output.say)


def elapsed(title: str, seconds: float, reason: str) -> Progress:
    """Return a progress row for a call that has no progress of its own."""
    waiting = {"text": reason, "reason": "service"} if reason else None
    waits = {"phase": "waiting", "waiting": waiting, "waiting_for": None}
    shown = span(seconds) if output.is_terminal(errors=True) else ""
    return {"ddl_id": 0, "name": title, "progress": shown, "rows": None, "total": None, "percent": None, **waits}


def publishing(statement: Mapping[str, Any]) -> Progress:
    """Return a progress row for a statement of `/v1/staged-statements`."""
    rows, total = statement["rows"], statement["total"]
    shown = f"{rows / total * 100:.2f}% ({rows}/{total})"
    row = {"ddl_id": 0, "name": f"into {statement['relation']}", "progress": shown, "rows": rows, "total": total}
    return {**row, "percent": rows / total * 100, "phase": "publishing", "waiting": None, "waiting_for": None}


def beside(job: Mapping[str, Any]) -> str:
    """Return the speed and the time left, and the reason of a wait."""
    parts: list[str] = []
    if job["phase"] == "backfilling":
        parts.append(speed(job["rows_per_second"]))
        parts.append(f"ETA {span(job['eta_seconds'])}")
    else:
        parts.append(job["phase"])
    waiting = job.get("waiting")
    if waiting:
        parts.append(f"[{waiting['text']}]")
    elif job["waiting_for"]:
        parts.append(f"[{job['waiting_for']}]")
    if not waiting or waiting["reason"] != "backfill_order":
        parts += [f"[{order(one)}]" for one in job.get("waits", ())]
    return " ".join(parts)


def order(scan: Mapping[str, Any]) -> str:
    """Return for what a scan waits in the backfill order."""
    return f"{reads(scan['upstream'])} after {', '.join(map(reads, scan['waits_for'])) or 'the next barrier'}"


def reads(upstream: str) -> str:
    """Return what a scan reads. A hidden relation is the result of a stage."""
    hidden = _HIDDEN.fullmatch(upstream)
    return upstream if hidden is None else f"the result of stage {hidden[2]} of {hidden[1]}"


def end_text(job: Mapping[str, Any]) -> str:
    """Return how a job ended."""
    error = f": {job['error']}" if job["error"] else ""
    return f"{job['name']}: {job['state']}{error}"
