"""Show live progress, with one bar for each job that is being created, until none is."""

from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from service.cli import output
from service.cli.client import Service

INTERVAL_SECONDS: Final = 0.5
"""Half of a barrier interval. Progress changes with every checkpoint, so it is shown at most this much late."""

Pause = Callable[[float], object]
Progress = Mapping[str, Any]
"""A row of `/v1/ddl-progress`, or a row that `elapsed` made."""
NOTHING: Final = "nothing is being created"


def watch(service: Service, *, job: int | None, follow: bool, as_json: bool, pause: Pause | None = None) -> bool:
    """Show progress until no job is being created (`follow`: for ever). Return whether all the jobs were created."""
    wait = pause or Event().wait
    watched: set[int] = set() if job is None else {job}
    ends: list[Mapping[str, Any]] = []
    with _view(as_json=as_json) as view:
        while True:
            shown = [found for found in service.items("/v1/ddl-progress") if job in {None, found["ddl_id"]}]
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
            line = f"{job['name']}: {job['progress']} {_beside(job)}".rstrip()
            if self._last.get(job["ddl_id"]) != line:
                self._last[job["ddl_id"]] = line
                self._say(line)

    def end(self, job: Mapping[str, Any]) -> None:
        self._say(_end_text(job))


class _BarView:
    """Shows bars on a terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Bars(
            # Without markup, because the texts contain brackets.
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[percent]:>7}", markup=False),
            TextColumn("{task.fields[rows]}", markup=False),
            TextColumn("{task.fields[beside]}", markup=False),
            console=console,
            transient=True,
        )
        self._bars: dict[int, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def show(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        for job in jobs:
            bar = self._bars.get(job["ddl_id"])
            if bar is None:
                bar = self._progress.add_task(job["name"], total=None, percent="", rows="", beside="")
                self._bars[job["ddl_id"]] = bar
            percent, total = job["percent"], job["total"]
            self._progress.update(
                bar,
                # Without a total the remaining work is unknown, so the bar swings instead of staying at 0.
                total=None if percent is None else 100.0,
                completed=percent or 0.0,
                percent=job["progress"] if percent is None else f"{percent:.2f}%",
                rows="" if job["rows"] is None else f"{job['rows']:,}/{'?' if total is None else f'{total:,}'}",
                beside=_beside(job),
            )
        self._progress.refresh()

    def end(self, job: Mapping[str, Any]) -> None:
        bar = self._bars.pop(job["id"], None)
        if bar is not None:
            self._progress.remove_task(bar)
        self._progress.console.print(_end_text(job), markup=False)


def _view(*, as_json: bool) -> _JsonView | _LineView | _BarView:
    if as_json:
        return _JsonView()
    return progress_view()


def progress_view(*, errors: bool = False) -> _LineView | _BarView:
    """Return bars on a terminal, otherwise lines; on standard output, or on standard error with `errors`."""
    console = output.console(errors=errors)
    return _BarView(console) if console.is_terminal else _LineView(output.note if errors else output.say)


def elapsed(title: str, seconds: float, reason: str) -> Progress:
    """Return a progress row for a call that has no progress of its own."""
    waiting = {"text": reason, "reason": "service"} if reason else None
    waits = {"phase": "waiting", "waiting": waiting, "waiting_for": None}
    shown = output.span(seconds) if output.console(errors=True).is_terminal else ""
    return {"ddl_id": 0, "name": title, "progress": shown, "rows": None, "total": None, "percent": None, **waits}


def _beside(job: Mapping[str, Any]) -> str:
    """Return the speed and the time left, and the reason of a wait."""
    parts: list[str] = []
    if job["phase"] == "backfilling":
        parts.append(output.speed(job["rows_per_second"]))
        parts.append(f"ETA {output.span(job['eta_seconds'])}")
    else:
        parts.append(job["phase"])
    waiting = job.get("waiting")
    if waiting:
        parts.append(f"[{waiting['text']}]")
    elif job["waiting_for"]:
        parts.append(f"[{job['waiting_for']}]")
    if not waiting or waiting["reason"] != "backfill_order":
        parts += [f"[{one['upstream']} after {', '.join(one['waits_for'])}]" for one in job.get("waits", ())]
    return " ".join(parts)


def _end_text(job: Mapping[str, Any]) -> str:
    error = f": {job['error']}" if job["error"] else ""
    return f"{job['name']}: {job['state']}{error}"
