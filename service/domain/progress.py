"""Compute the progress that users read: RisingWave's strings, and the same as numbers (I6).

The strings are those of `backfill-semantics.md`, section 1.5.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from service.domain.job import PERMITS, JobState, queued_at
from service.protocol.ids import FragmentId
from service.protocol.plan import ScanType

SMOOTHING: Final = timedelta(seconds=5)
"""Time constant of the averaged rate. It is long enough for a calm rate, and short enough to show a throttle."""


@dataclass(frozen=True, slots=True)
class ScanProgress:
    """The progress of one scan fragment.

    `total` is the number of keys in the upstream, None while unknown: at the epoch that a Snapshot job has pinned, or
    now. It is never below `rows`. `rate` is in rows per second. Invariant: `rows` never decreases within a generation.
    """

    fragment: FragmentId
    upstream: str
    rows: int = 0
    total: int | None = None
    rate: float = 0.0
    finished: bool = False
    rate_limit: int | None = None
    at: datetime | None = None
    waiting: bool = False
    """The scan waits for its place in the backfill order."""
    awaits: tuple[str, ...] = ()
    """The relations that the scan still waits for. It is empty while the scan waits for the barrier that starts it."""
    scan_type: ScanType | None = ScanType.ARRANGEMENT_BACKFILL
    """None for the scan of an external table."""
    auto: bool = False
    """The service adapts the limit to the load."""
    limited_since: datetime | None = None
    """When the present limit took effect; None if the scan began with it."""
    stopped: str | None = None
    """Why the external table is no longer followed."""
    source_waiting: str | None = None
    """Why nothing of the external table can be read at present."""
    limited_by: str | None = None
    """The actor that set the present limit; None if the scan began with it."""

    @property
    def external(self) -> bool:
        """Whether the scan reads an external table. A followed table is created before its history is read."""
        return self.scan_type is None


def held_outside(scans: Sequence[ScanProgress]) -> str | None:
    """Return why nothing is read from an external table of these scans, or None."""
    return next((why for scan in scans for why in (scan.stopped, scan.source_waiting) if why is not None), None)


def follows_unread(scans: Sequence[ScanProgress]) -> bool:
    """Whether a scan still reads the history of an external table. This can be the case after the job is created."""
    return any(scan.external and not scan.finished for scan in scans)


_DECIMALS: Final = 10**20
_UNKNOWN: Final = "Unknown"
ETA_MAX: Final = timedelta(days=1000)
"""A longer estimate means that the rate is too small for an estimate."""


class Phase(StrEnum):
    """The present phase of a job."""

    QUEUED = "queued"
    STARTING = "starting"
    BACKFILLING = "backfilling"
    REPLAYING = "replaying"
    """A snapshot job replays the changes since its snapshot."""
    FINISHING = "finishing"
    CREATED = "created"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """The progress of a snapshot job beyond its scans.

    `lag` is its distance to the committed epoch, None while it reads the snapshot. `merged` is True if the job has
    moved to the database graph, whose next epochs finish it.
    """

    actors: int
    lag: timedelta | None = None
    merged: bool = False


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job. `text` is RisingWave's string; `percent` is None if the total is unknown."""

    text: str
    phase: Phase
    rows: int
    total: int | None
    percent: float | None
    rate: float
    eta: timedelta | None
    backfill_type: str
    """As in `rw_ddl_progress`."""
    waiting_for: str | None
    """Why no history is read now (pause, limit, order, queue, recovery, source), or which limits slow it; None if
    neither.
    """


def advanced(scan: ScanProgress, *, rows: int, total: int | None, finished: bool, at: datetime) -> ScanProgress:
    """Return the progress after a checkpoint that was committed at `at` with cumulative `rows`."""
    assert rows >= scan.rows, (rows, scan)
    return replace(scan, rows=rows, total=total, rate=_rate(scan, rows, at), finished=finished, at=at)


def of_job(
    state: JobState,
    scans: Sequence[ScanProgress],
    *,
    started: bool,
    queue_place: int | None = None,
    queued_by: str = PERMITS,
    paused: bool = False,
    recovering: str | None = None,
    snapshot: SnapshotProgress | None = None,
) -> JobProgress:
    """Return the progress of a job. `started` is whether the job's first barrier was collected."""
    if state is JobState.CREATED and follows_unread(scans):
        state = JobState.CREATING  # The table can be read, but its history is not complete.
    rows = sum(scan.rows for scan in scans)
    totals = [scan.total for scan in scans]
    total = None if None in totals else sum(value for value in totals if value is not None)
    rate = sum(scan.rate for scan in scans if not scan.finished)
    phase = _phase(state, scans, snapshot, started=started)
    text = _text(state, scans, rows, total, started=started)
    queued = queued_at(queue_place, queued_by)
    left = None if total is None else max(total - rows, 0)
    return JobProgress(
        text=text if snapshot is None else _snapshot_text(phase, text, scans, snapshot),
        phase=phase,
        rows=rows,
        total=total,
        # A job that is gone has no scans. If its text is unknown, its percentage is unknown too.
        percent=None if phase is Phase.STOPPED and text == _UNKNOWN else _percent(phase, rows, total),
        rate=rate,
        eta=_eta(left, rate) if phase is Phase.BACKFILLING else None,
        backfill_type=backfill_type(scans),
        waiting_for=_waiting_for(phase, scans, queued=queued, paused=paused, recovering=recovering),
    )


def fragment_text(rows: int, total: int | None) -> str:
    """Return `rw_fragment_backfill_progress.progress`, with two to twenty decimals and without a cap at 99.99 %.

    An empty or unknown upstream is 100 %. The view in `rw_catalog` prints the same text.
    """
    if not total:
        return f"100% ({rows}/{total or 0})"
    # Compute with integers and round half up, because a float prints 1e-05 if little of much has been read.
    whole, parts = divmod((2 * rows * 100 * _DECIMALS + total) // (2 * total), _DECIMALS)
    decimals = f"{parts:020}".rstrip("0").ljust(2, "0")
    return f"{whole}.{decimals}% ({rows}/{total})"


def backfill_type(scans: Sequence[ScanProgress]) -> str:
    """Return `rw_ddl_progress.backfill_type` of a job."""
    if not scans:
        return "BACKFILL_TYPE_UNSPECIFIED"
    return "SNAPSHOT_BACKFILL" if _decoupled(scans[0]) else "NORMAL_BACKFILL"


def scan_backfill_type(scan: ScanProgress) -> str:
    """Return `rw_backfill_info.backfill_type` of a scan."""
    if scan.external:
        return "SOURCE"
    return "SNAPSHOT_BACKFILL" if _decoupled(scan) else "ARRANGEMENT_OR_NO_SHUFFLE"


def _decoupled(scan: ScanProgress) -> bool:
    return scan.scan_type is ScanType.SNAPSHOT_BACKFILL


def metric_text(scan: ScanProgress) -> str:
    """Return the label of the metric `backfill_fragment_progress`."""
    total = scan.total or 0
    if scan.finished:
        return f"100.0000% ({total}/{total})"
    return f"{scan.rows / total * 100:.4f}% ({scan.rows}/{total})" if total else "0.0000% (0/0)"


def _text(state: JobState, scans: Sequence[ScanProgress], rows: int, total: int | None, *, started: bool) -> str:
    if state in {JobState.CANCELLING, JobState.DROPPING}:
        return "Resetting"
    if state is JobState.CREATED:
        return "100%"
    if not started:
        return "0.0%"
    if not scans:
        return _UNKNOWN
    if total is None:
        return _UNKNOWN
    if total == 0:
        return "99.99%"
    # Print 100 % only after the checkpoint with the finish has committed (I6). RisingWave prints 100.00% at a share
    # of exactly 1.
    share = min(rows / total, 0.9999)
    return f"{share * 100:.2f}% ({rows}/{total})"


def _snapshot_text(phase: Phase, text: str, scans: Sequence[ScanProgress], snapshot: SnapshotProgress) -> str:
    match phase:
        case Phase.BACKFILLING:
            return "Snapshot finished" if all(scan.finished for scan in scans) else f"Snapshot [{text}]"
        case Phase.REPLAYING:
            # The scans of a job replay the same epochs together: either all of them are behind, or the job merges.
            lag = duration_text(snapshot.lag or timedelta(0))
            return f"LogStore [actor: 0/{snapshot.actors}, avg lag {lag}]"
        case Phase.FINISHING:
            return f"Finishing [epoch lag: {duration_text(snapshot.lag or timedelta(0))}]"
        case _:
            return text


def duration_text(duration: timedelta) -> str:
    """Return a duration as RisingWave prints one, in Rust's format: `1.5s`, `250ms`, `40µs`, `0ns`."""
    microseconds = duration // timedelta(microseconds=1)
    for unit, size in (("s", 1_000_000), ("ms", 1_000), ("µs", 1)):
        if microseconds >= size:
            whole, rest = divmod(microseconds, size)
            fraction = str(rest).rjust(len(str(size)) - 1, "0").rstrip("0") if rest else ""
            return f"{whole}.{fraction}{unit}" if fraction else f"{whole}{unit}"
    return "0ns"


def _percent(phase: Phase, rows: int, total: int | None) -> float | None:
    if phase is Phase.CREATED:
        return 100.0
    if total is None:
        return None
    if phase in {Phase.QUEUED, Phase.STARTING} or (phase is Phase.STOPPED and not total):
        return 0.0
    return min(rows / total * 100, 99.99) if total else 99.99


def _eta(left: int | None, rate: float) -> timedelta | None:
    """Return the time left, or None if the total is unknown, no row is read, or the time exceeds `ETA_MAX`."""
    if left is None or left > rate * ETA_MAX.total_seconds():
        return None
    return timedelta(seconds=left / rate) if left else timedelta(0)


def _phase(
    state: JobState, scans: Sequence[ScanProgress], snapshot: SnapshotProgress | None, *, started: bool
) -> Phase:
    match state:
        case JobState.CREATED:
            return Phase.CREATED
        case JobState.QUEUED:
            return Phase.QUEUED
        case JobState.INITIAL:
            return Phase.STARTING
        case JobState.CREATING:
            if not started:
                return Phase.STARTING
            if snapshot is not None:
                replaying = Phase.BACKFILLING if snapshot.lag is None else Phase.REPLAYING
                return Phase.FINISHING if snapshot.merged else replaying
            return Phase.FINISHING if all(scan.finished for scan in scans) else Phase.BACKFILLING
        case _:
            return Phase.STOPPED


def _waiting_for(
    phase: Phase, scans: Sequence[ScanProgress], *, queued: str, paused: bool, recovering: str | None
) -> str | None:
    if phase is Phase.QUEUED:
        return queued
    if phase not in {Phase.STARTING, Phase.BACKFILLING, Phase.REPLAYING}:
        return None
    if recovering is not None:
        return f"cluster under recovery[{recovering}]"
    if paused:
        return "paused"
    if phase is Phase.REPLAYING:
        # A limit slows history only, but a limit of 0 also stops the replay.
        return "backfill_rate_limit is 0" if any(scan.rate_limit == 0 for scan in scans) else None
    return _history_waits_for(scans)


def _history_waits_for(scans: Sequence[ScanProgress]) -> str | None:
    # A scan that waits for its place depends on the other scans, so those give the reason.
    free = [scan for scan in scans if not (scan.finished or scan.waiting)]
    if not free:
        return None if all(scan.finished for scan in scans) else "backfill_order"
    if held := held_outside(free):
        return held
    limited = [scan for scan in free if scan.rate_limit is not None]
    if not limited:
        return None
    if len(limited) == len(free) and not any(scan.rate_limit for scan in limited):
        return "backfill_rate_limit is 0"
    return f"throttled to {', '.join(map(_limit_text, limited))} rows/s per actor"


def _limit_text(scan: ScanProgress) -> str:
    return f"{scan.rate_limit} (auto)" if scan.auto else str(scan.rate_limit)


def _rate(scan: ScanProgress, rows: int, at: datetime) -> float:
    if scan.at is None or at <= scan.at:
        return scan.rate
    seconds = (at - scan.at).total_seconds()
    # The first known rate has full weight, because an average with zero would promise too long a wait.
    weight = min(seconds / SMOOTHING.total_seconds(), 1.0) if scan.rate > 0 else 1.0
    return scan.rate * (1 - weight) + (rows - scan.rows) / seconds * weight
