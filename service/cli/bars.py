"""Bars on a terminal. Only this module loads a terminal library, so that every other command starts fast."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from service.cli import watching


class BarView:
    """Shows one bar for each job. Ends are printed above the bars."""

    def __init__(self, *, errors: bool) -> None:
        self._progress = Progress(
            # Without markup, because the texts contain brackets.
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[percent]:>7}", markup=False),
            TextColumn("{task.fields[rows]}", markup=False),
            TextColumn("{task.fields[beside]}", markup=False),
            console=console(errors=errors),
            transient=True,
        )
        self._bars: dict[int, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def show(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Show the present progress of these jobs."""
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
                beside=watching.beside(job),
            )
        self._progress.refresh()

    def end(self, job: Mapping[str, Any]) -> None:
        """Replace the bar of a job by its end."""
        bar = self._bars.pop(job["id"], None)
        if bar is not None:
            self._progress.remove_task(bar)
        self._progress.console.print(watching.end_text(job), markup=False)


def console(*, errors: bool) -> Console:
    """Return a console on the present standard output or standard error."""
    return Console(file=sys.stderr if errors else sys.stdout, highlight=False)
