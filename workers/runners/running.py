"""Run the runners of an epoch in their order, and gather the jobs that fail in it.

A job that fails by its own fault does not end the epoch at once: all others run too, so that the failures of one epoch
are reported together and cost one recovery (I13). What reads a failed relation is left out, because it would read only
a part of the epoch's changes.
"""

from collections.abc import Mapping, Sequence

from service.protocol.ids import RelationId
from workers.runners.failure import JobFailedError
from workers.runners.port import FragmentReport, FragmentRunner, Phase, Place, RunningEpoch


def run_all(runners: Mapping[Place, FragmentRunner], epoch: RunningEpoch) -> list[FragmentReport]:
    """Run an epoch: tables before the scans that read them, and an upstream before its downstreams.

    Raises JobFailedError with all jobs that failed by their own fault, or at once what any other failure raises.
    """
    reports: list[FragmentReport] = []
    failures: list[JobFailedError] = []
    broken: set[RelationId] = set()
    for place in sorted(runners):
        runner, target = runners[place], _target(place)
        reading = runner.readers(paused=epoch.paused)
        if target is not None and not broken.isdisjoint((target, *runner.reads)):
            broken.add(target)
            continue
        try:
            reports += runner.run(epoch)
        except JobFailedError as error:
            if target is None or not error.deterministic:
                error.others = tuple(failures)
                raise
            failures.append(error)
            broken.add(target)
        epoch.readers -= reading
    if failures:
        raise _together(failures)
    return reports


def _target(place: Place) -> RelationId | None:
    """Return the relation that a scan writes; None for what runs before all scans."""
    phase, relation, _ = place
    return RelationId(relation) if phase is Phase.SCAN else None


def _together(failures: Sequence[JobFailedError]) -> JobFailedError:
    """Return the first failure, with the others."""
    first, *others = failures
    first.others = tuple(others)
    return first
