"""Print one job: its progress, the reason of a wait, its backfill order, and each of its scans."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from service.cli import output, watching
from service.domain.words import UNLIMITED, span, speed

_COLUMNS: Final = (
    ("Fragment", "bigint"),
    ("Reads", "text"),
    ("Rows", "bigint"),
    ("Total", "bigint"),
    ("Actors", "bigint"),
    ("Vnodes done", "text"),
    ("Limit", "text"),
    ("State", "text"),
)
_RUNS: Final = {"spark": "{:,} jobs", "store": "{:,} runs"}


def show(detail: Mapping[str, Any]) -> None:
    """Print a job's detail."""
    for line in _lines(detail):
        output.say(line)
    scans = [one for one in detail["fragments"] if one["scan_type"] is not None]
    if scans:
        output.show_rows(_COLUMNS, (_row(scan) for scan in scans))


def _lines(detail: Mapping[str, Any]) -> Iterator[str]:
    job = detail["job"]
    progress = job["progress"]
    moving = progress["phase"] == "backfilling"
    rate = f", {speed(progress['rows_per_second'])}, ETA {span(progress['eta_seconds'])}"
    yield f"{job['name']} (job {job['id']}, {job['kind']}): {job['state']}, {progress['text']}{rate if moving else ''}"
    if job["error"]:
        yield f"  error: {job['error']}"
    if job.get("broken") and not job["error"]:
        yield f"  {broken_text(job['broken'])}"
    if job["waiting"]:
        yield f"  waits: {waiting_text(job['waiting'])}"
    if read := work_text(detail["engines"]):
        yield f"  read by: {read}"
    if detail["backfill_order"]:
        yield "  order: " + ", ".join(f"{before} -> {after}" for before, after in detail["backfill_order"])
    for scan in detail["fragments"]:
        if scan["auto"] is not None and scan["auto"]["reason"] is not None:
            yield f"  auto:  {scan['upstream']} {scan['auto']['move']}: {scan['auto']['reason']}"


def work_text(engines: Mapping[str, Any]) -> str:
    """Return how many rows each engine has read, and in how many jobs (or runs, of the store)."""
    done = {name: one for name, one in engines.items() if one["jobs"]}
    return ", ".join(f"{name} {one['rows']:,} rows in {_RUNS[name].format(one['jobs'])}" for name, one in done.items())


def broken_text(broken: Mapping[str, Any]) -> str:
    """Return why a relation is not kept current, and since when."""
    since = "" if broken["since"] is None else f" since {broken['since']}"
    return f"{broken['state'].upper()}{since}: {broken['reason']}"


def waiting_text(waiting: Mapping[str, Any]) -> str:
    """Return why a job waits, since when, and until when at the latest."""
    since = "" if waiting["since"] is None else f", since {waiting['since']}"
    until = "" if waiting["until"] is None else f", until {waiting['until']}"
    return f"{waiting['text']}{since}{until}"


def _row(scan: Mapping[str, Any]) -> list[object]:
    counts = scan["positions"]
    return [
        scan["id"],
        watching.reads(scan["upstream"]),
        scan["rows"],
        "not known yet" if scan["total"] is None else scan["total"],
        len(scan["actors"]),
        f"{counts['completed']}/{counts['not_started'] + counts['in_progress'] + counts['completed']}",
        _limit(scan),
        _state(scan),
    ]


def _limit(scan: Mapping[str, Any]) -> str:
    limit = UNLIMITED if scan["rate_limit"] is None else f"{scan['rate_limit']:,}"
    return limit if scan["auto"] is None else f"{limit} (auto, {scan['auto']['phase']})"


def _state(scan: Mapping[str, Any]) -> str:
    if scan["finished"]:
        return "finished"
    if scan["waiting"]:
        return "after " + (", ".join(scan["waits_for"]) or "the next barrier")
    return "paused" if scan["rate_limit"] == 0 else "reading"
