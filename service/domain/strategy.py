"""Choose the strategy that backfills the scans of a job, and compute the actors of a NoShuffle scan.

A NoShuffle scan has one actor per actor of its upstream, over the same vnodes, so rows never move between actors.
`service.domain.parallelism` assigns vnodes in one way only. Equal numbers of actors therefore own equal vnodes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from service.domain.errors import Invalid
from service.domain.parallelism import Adaptive, Parallelism, resolved
from service.domain.parameters import SESSION_DEFAULTS
from service.protocol.columns import ColumnType
from service.protocol.plan import ScanType


@dataclass(frozen=True, slots=True)
class Strategy:
    """How the scans of a job are backfilled. `why` completes a sentence after "because"."""

    scan_type: ScanType
    why: str


def chosen(session: Mapping[str, str]) -> Strategy:
    """Return the strategy for a job that a session creates."""
    if _on(session, "streaming_use_snapshot_backfill"):
        return Strategy(ScanType.SNAPSHOT_BACKFILL, "it is the default, and no session variable turns it off")
    if _on(session, "streaming_use_arrangement_backfill"):
        return Strategy(ScanType.ARRANGEMENT_BACKFILL, "streaming_use_snapshot_backfill is off")
    off = "streaming_use_snapshot_backfill and streaming_use_arrangement_backfill are off"
    return Strategy(ScanType.BACKFILL, off)


def check_serverless(strategy: Strategy, *, own_workers: bool) -> None:
    """Raise Invalid if a job cannot have its own worker."""
    if strategy.scan_type is not ScanType.SNAPSHOT_BACKFILL:
        raise Invalid(
            "Serverless Backfill needs a graph of its own, which only a Snapshot backfill has: the strategy is"
            f" {strategy.scan_type}, because {strategy.why}"
        )
    if not own_workers:
        raise Invalid(
            "Serverless Backfill is disabled. Workers are started outside of this service (TIDEFILL_LAUNCHER=none): it"
            " cannot start one for this job. SET enable_serverless_backfill = false shares theirs"
        )


def check_resource_group(group: str, profiles: Collection[str] | None, *, serverless: bool, has_profiles: bool) -> None:
    """Raise Invalid if a job's worker cannot have the profile `group`.

    Workers have no profiles (`has_profiles`) if they are no pods. `profiles` is None if they are unknown.
    """
    if not serverless:
        raise Invalid(
            "resource_group is the profile of a worker that serves this job alone: SET enable_serverless_backfill ="
            " true, or leave the option out"
        )
    if not has_profiles:
        raise Invalid(
            "resource_group is the profile of a worker's pod, and this service starts workers as processes"
            " (TIDEFILL_LAUNCHER=subprocess): leave the option out"
        )
    if profiles is not None and group not in profiles:
        known = ", ".join(sorted(profiles)) or "none"
        raise Invalid(f'resource group "{group}" does not exist. The profiles of workers are: {known}')


def check_key(upstream: str, types: Collection[ColumnType], strategy: Strategy) -> None:
    """Raise Invalid if Spark would have to compare keys of types that it does not have with positions.

    A Snapshot backfill compares no key with a position, because its pages are read before it follows changes.
    """
    if strategy.scan_type is not ScanType.SNAPSHOT_BACKFILL and any(kind.unbounded for kind in types):
        raise Invalid(
            f'"{upstream}" has a numeric without a precision in its key, which Spark cannot order:'
            " SET streaming_use_snapshot_backfill = true"
        )


def tied_actors(scans: Collection[int], vnode_count: int) -> int:
    """Return how many actors a NoShuffle scan has. `scans` has the number of actors of each scan of its upstream.

    A table has one writer. A union whose scans have different parallelism has no actor mapping of its own. A NoShuffle
    scan over it uses the largest parallelism.
    """
    return min(max(scans, default=1), vnode_count)


def check_tied(asked: Parallelism | None, actors: int, *, slots: int, vnode_count: int, upstream: str) -> None:
    """Raise Invalid if the user requests another number of actors than the upstream has. `adaptive`
    accepts any number.
    """
    if asked is None or isinstance(asked, Adaptive):
        return
    wanted = resolved(asked, slots=slots, vnode_count=vnode_count, scans=1)
    if wanted != actors:
        raise Invalid(
            f"a NoShuffle backfill has the parallelism of its upstream: that of {upstream} is {actors}, not {wanted}"
        )


def _on(session: Mapping[str, str], variable: str) -> bool:
    return session.get(variable, SESSION_DEFAULTS[variable]) == "true"
