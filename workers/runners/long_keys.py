"""Bound the long keys of positions (I13).

The position of a vnode has the key of the row that was read last. A text of 100 kB compresses to a key that Postgres
takes, and a view may have 262,144 vnodes: an answer with such keys is too large for the service, and all graphs of the
worker would recover again and again.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from service.protocol.ids import FragmentId, JobId, Vnode
from service.protocol.plan import JobPlan, VnodePosition
from service.protocol.report import ActorReport, FragmentReport
from workers.connectors.port import RefusedRowError
from workers.runners.failure import JobFailedError

LONG: Final = 64
"""Shorter keys are not counted, in bytes."""
MOST: Final = 16 << 20
"""How many bytes the others may have, of all jobs of a caller in a graph together."""


@dataclass
class LongKeys:
    """The sizes of the long keys of a graph's jobs."""

    jobs: dict[FragmentId, JobPlan] = field(default_factory=dict[FragmentId, JobPlan])
    sizes: defaultdict[JobId, dict[tuple[FragmentId, Vnode], int]] = field(
        default_factory=lambda: defaultdict(dict[tuple[FragmentId, Vnode], int])
    )

    def add(self, job: JobPlan) -> None:
        """Count those of a plan."""
        for fragment in job.fragments:
            self.jobs[fragment.id] = job
            for actor in fragment.actors:
                self._note(job.id, fragment.id, actor.positions)

    def remove(self, jobs: Collection[JobId]) -> None:
        """Forget jobs."""
        self.jobs = {fragment: job for fragment, job in self.jobs.items() if job.id not in jobs}
        for job in jobs:
            self.sizes.pop(job, None)

    def check(self, reports: Iterable[FragmentReport]) -> None:
        """Count those of an epoch. Raises JobFailedError for the job with most of a caller that has too many."""
        for one in reports:
            if isinstance(one, ActorReport) and one.fragment in self.jobs:
                job = self.jobs[one.fragment].id
                self._note(job, one.fragment, one.positions)
                if one.finished and job in self.sizes:
                    self.sizes[job] = {at: size for at, size in self.sizes[job].items() if at[0] != one.fragment}
        plans = {job.id: job for job in self.jobs.values()}
        callers = defaultdict[str, dict[JobId, int]](dict)
        for job, sizes in self.sizes.items():
            callers[plans[job].caller][job] = sum(sizes.values())
        for its in callers.values():
            if (size := sum(its.values())) > MOST:
                raise _failed(plans[max(its, key=lambda job: its[job])], size)

    def _note(self, job: JobId, fragment: FragmentId, positions: Iterable[VnodePosition]) -> None:
        for one in positions:
            place = fragment, one.vnode
            if sum(len((part or "").encode()) for part in one.key or ()) > LONG:
                self.sizes[job][place] = len(json.dumps(one.key, ensure_ascii=False).encode())
            elif job in self.sizes:
                self.sizes[job].pop(place, None)


def _failed(job: JobPlan, size: int) -> JobFailedError:
    error = RefusedRowError(
        f"the keys up to which its vnodes are read have {size >> 20} MB, of {MOST >> 20} MB that those of a caller may"
        " have: a primary key with a digest such as md5(x) in place of a long text is shorter"
    )
    return JobFailedError(job.id, error, target=job.relation, upstream=job.relation, computing=False)
