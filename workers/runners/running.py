"""Run the runners of an epoch in order, and collect the jobs that fail in it.

Runners of sources come first, one by one. Scans run in waves: a scan belongs to the wave after all scans that
write its upstreams. In a wave, scans that only forward a few changes run first, concurrently, because each is one small
task. The others run one by one. Each of them uses all task slots of the worker, and they share the rest of the
interval.

A job that fails by its own fault does not end the epoch at once. All other runners still run, so that the failures of
one epoch are reported together and cost one recovery (I13). A scan that reads a failed relation is left out, because it
would read only a part of the epoch's changes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field

import structlog

from service.protocol.ids import RelationId
from service.protocol.report import FragmentReport
from workers.runners.failure import JobFailedError
from workers.runners.port import FragmentRunner, Phase, Place, RunningEpoch

log = structlog.get_logger("running")

Reports = Sequence[FragmentReport]
Beside = Callable[[Callable[[Place], Reports | Exception], Iterable[Place]], Iterable[Reports | Exception]]
"""Runs a function for several places and yields the results in order, like `map`. The `map` of an executor runs several
calls concurrently.
"""


def run_all(
    runners: Mapping[Place, FragmentRunner], epoch: RunningEpoch, beside: Beside | None = None
) -> list[FragmentReport]:
    """Run an epoch. `beside` runs the brief scans of a wave concurrently. If it is None, they run one by one.

    Raises JobFailedError with all jobs that failed by their own fault. Any other error is raised at once.
    """
    running = _Running(runners, epoch)
    for place in sorted(place for place in runners if place[0] is not Phase.SCAN):
        running.run([place])
    for wave in waves(runners):
        brief = [place for place in wave if runners[place].is_brief(epoch)]
        running.run(brief, beside)
        # Live changes first (I5).
        for place in sorted(set(wave) - set(brief), key=lambda place: (running.readers(place), place)):
            running.run([place])
    if running.failures:
        raise running.together()
    return running.reports


def waves(runners: Mapping[Place, FragmentRunner]) -> list[list[Place]]:
    """Return the places of the scans in waves. A scan's wave is the length of the longest chain of scans upstream."""
    depth: dict[RelationId, int] = {}
    found: list[list[Place]] = []
    # A relation has a higher id than its upstreams, so the depth of a scan's upstreams is known before its own.
    for place in sorted(place for place in runners if place[0] is Phase.SCAN):
        own, target = max((depth.get(one, 0) for one in runners[place].reads), default=0), RelationId(place[1])
        depth[target] = max(depth.get(target, 0), own + 1)
        found += [[] for _ in range(own + 1 - len(found))]
        found[own].append(place)
    return found


def _here(call: Callable[[Place], Reports | Exception]) -> Callable[[Place], Reports | Exception]:
    """Return `call` for other threads, with the context of this one: log lines then carry the epoch."""
    context = copy_context()
    return lambda place: context.copy().run(call, place)


def _one_of(errors: Sequence[Exception]) -> Exception:
    """Return the error that is told, of scans that ran beside each other.

    Any of them may have caused it, for example by using up the memory.
    """
    failed = [one for one in errors if isinstance(one, JobFailedError)]
    if not failed:
        return errors[0]
    failed[0].computing = failed[0].suspect = False
    failed[0].beside = tuple(sorted({one.job for one in failed}))
    return failed[0]


@dataclass
class _Running:
    """An epoch while it runs."""

    runners: Mapping[Place, FragmentRunner]
    epoch: RunningEpoch
    reports: list[FragmentReport] = field(default_factory=list[FragmentReport])
    failures: list[JobFailedError] = field(default_factory=list[JobFailedError])
    broken: set[RelationId] = field(default_factory=set[RelationId])
    """The relations that lack some or all of this epoch's changes, because of a failure."""

    def readers(self, place: Place) -> int:
        return self.runners[place].readers(paused=self.epoch.paused)

    def run(self, places: Sequence[Place], beside: Beside | None = None) -> None:
        """Run the places that do not depend on a failure."""
        # Count readers before the run, because a scan may reach the end of its history in it.
        reading = sum(map(self.readers, places))
        sound = [place for place in places if not self._left_out(place)]
        alone = beside is None or len(sound) < 2
        # No runner may still run when the epoch ends, so wait for all concurrent ones before an error is raised.
        results = map(self._one, sound) if alone or beside is None else list(beside(_here(self._one), sound))
        ended: list[Exception] = []
        for place, result in zip(sound, results, strict=True):
            match result:
                case JobFailedError(deterministic=True):
                    self.failures.append(result)
                    self.broken.add(RelationId(place[1]))
                case Exception() if alone:
                    raise self._ending(result)
                case Exception():
                    ended.append(result)
                case _:
                    self.reports += result
        if ended:
            raise self._ending(_one_of(ended))
        self.epoch.readers -= reading

    def together(self) -> JobFailedError:
        """Return the first failure, with the first failures of other jobs in `others`."""
        first = self.failures[0]
        first.others = tuple({one.job: one for one in reversed(self.failures) if one.job != first.job}.values())[::-1]
        return first

    def _one(self, place: Place) -> Reports | Exception:
        what = f"{place[0].name.lower()} {place[2] or place[1]}"
        try:
            with self.epoch.working(what):
                return self.runners[place].run(self.epoch)
        except Exception as error:  # noqa: BLE001 - raised again by `run`
            job = error.job if isinstance(error, JobFailedError) else None
            # Without the error's text, which the worker logs once for the epoch.
            log.warning("scan.failed", what=what, job=job, error=type(error).__name__)
            return error

    def _ending(self, error: Exception) -> Exception:
        """Return an error that ends the epoch at once, with the earlier failures of other jobs in `others`."""
        if self.failures and isinstance(error, JobFailedError):
            first = self.together()
            error.others = tuple(one for one in (first, *first.others) if one.job != error.job)
        return error

    def _left_out(self, place: Place) -> bool:
        target, reads = RelationId(place[1]), self.runners[place].reads
        if place[0] is not Phase.SCAN or self.broken.isdisjoint((target, *reads)):
            return False
        self.broken.add(target)
        return True
