"""How long the changes of views may hold up everybody else (I13). Pure.

The seconds of an epoch beyond a moment come out of a bucket, and a part of all time flows back into it. So one long
epoch is borne, and several in succession are not. Each scan has a bucket, and all scans of a graph share one more.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from service.protocol.barrier import COST_REFILL
from service.protocol.ids import FragmentId, JobId

FREE_SECONDS: Final = 2.0
"""An epoch that takes no longer is free: others wait for so long without noticing."""
SMALL_SECONDS: Final = 0.25
"""A view that takes less of an epoch is over only beside many others of its caller."""
PAGE_SECONDS: Final = 5.0
"""A page of history may always take so long: those of a busy machine take longer than their slice."""
NOTHING: Final = 0.001
"""An engine takes no limit of 0 for one."""
ANEW_SECONDS: Final = 1.0
"""An engine plans and compiles a stage that it computes for the first time, which takes about so long."""
_MANY_SHARE: Final = 0.25
"""From this share of the time of all on, small views of one caller are over. What small views of many callers take is
the size of the worker.
"""


@dataclass(frozen=True, slots=True)
class CostBudget:
    """A bucket of `limit` seconds, of which some were spent at the instant `since`. A limit of 0 is none."""

    limit: float
    spent: float = 0.0
    since: float = 0.0

    def allowed(self, now: float) -> float | None:
        """Return how many seconds the changes of an epoch may take. None: any."""
        return min(self.limit, FREE_SECONDS + self.limit - self.spent_at(now)) if self.limit else None

    def charged(self, seconds: float, now: float) -> "CostBudget":
        """Return the bucket after an epoch that took so long and ends now."""
        spent = min(self.spent_at(now) + max(0.0, seconds - FREE_SECONDS), self.limit)
        return CostBudget(self.limit, spent, now)

    def spent_at(self, now: float) -> float:
        """Return how many seconds have not flowed back yet."""
        return max(0.0, self.spent - COST_REFILL * (now - self.since))


@dataclass
class PageTurns:
    """Which scans of a graph that others wait for read a page of their history in an epoch: all, while pages are short.

    One that takes long is the last one of its epoch, and the next epoch begins with the scan that was put off first. So
    an epoch has one long page, and each scan has its turn. The five branches of a view took 15 s each of one epoch.
    """

    taken: float = 0.0
    """How many seconds the pages of this epoch took."""
    _due: FragmentId | None = None
    _put_off: FragmentId | None = None

    def may_read(self, scan: FragmentId, *, changes: float) -> bool:
        """Whether a scan reads a page now, after changes that took so many seconds of this epoch."""
        if self._due not in (None, scan):
            return False
        due, self._due = self._due == scan, None
        if self.taken <= FREE_SECONDS and (due or changes <= FREE_SECONDS):
            return True
        self._put_off = self._put_off or scan
        return False

    def settle(self) -> None:
        """End an epoch."""
        self.taken, self._due, self._put_off = 0.0, self._put_off, None


@dataclass
class SharedCosts:
    """The seconds that the changes of all views take together, while each is within its own budget."""

    together: CostBudget = CostBudget(0)
    over: Collection[JobId] = ()
    """The dearest views from when the shared bucket is empty until it is half full: everybody waits for them most."""
    callers: dict[JobId, str] = field(default_factory=dict[JobId, str])
    """Who created each view."""
    slow: dict[str, CostBudget] = field(default_factory=dict[str, CostBudget])
    """The budgets of callers whose views took too long. They outlast the generation."""
    apart: Collection[str] = ()
    """The callers whose views are computed one by one (`ScanLimits.apart`)."""
    pages: PageTurns = field(default_factory=PageTurns)
    paged: dict[str, CostBudget] = field(default_factory=dict[str, CostBudget])
    """The budgets of callers for pages of history, because each of 64 branches has a first one. They outlast the
    generation.
    """
    began: float = 0.0
    """When the scans of this epoch began."""
    _epoch: Counter[JobId] = field(default_factory=Counter[JobId])
    _least: dict[JobId, float] = field(default_factory=dict[JobId, float])
    """The seconds that each job of this epoch may take at least, because of its engine."""
    _spent: Counter[JobId] = field(default_factory=Counter[JobId])
    _epochs: int = 0
    """How many long epochs that sum is of: those since the bucket was full."""

    def caller(self, job: JobId) -> str:
        """Return who created a job; empty for nobody known."""
        return self.callers.get(job, "")

    def is_apart(self, job: JobId) -> bool:
        """Whether a job is computed beside no other."""
        return self.caller(job) in self.apart

    def took(self, job: JobId, milliseconds: int) -> None:
        """Record what the changes of a job took in this epoch."""
        self._epoch[job] += milliseconds

    def allowed(
        self, job: JobId, own: CostBudget, now: float, *, least: float = 0.0, anew: bool = False
    ) -> float | None:
        """Return how many seconds the changes of a job may take in this epoch. None: any.

        The views of a caller may take no more of an epoch together than one of them, except for a moment each: else
        views over one table, each just within its budget, would hold up everybody for the sum. Together they may take
        so many at `least`. A stage that is computed `anew` may take so many by itself. All that ends when they have
        taken what an epoch may: 12 branches of one view held up everybody for 78 s, and 384 small ones for 65 s. When
        the views of all callers have taken that, those of each one have a moment left.
        """
        if not self.together.limit:
            return None
        self._least[job] = max(least, self._least.get(job, 0.0))
        caller, whole = self.caller(job), CostBudget(self.together.limit)
        taken = self._by_caller(self._epoch)[caller] / 1000
        if taken >= whole.limit + FREE_SECONDS:
            return NOTHING
        spent = self._bucket(self.slow, caller, now).spent
        budgets = (own, CostBudget(whole.limit, spent + taken, now))
        everybody = max(whole.limit + FREE_SECONDS - self.taken(now), FREE_SECONDS - taken)
        left = min(everybody, *(seconds for one in budgets if (seconds := one.allowed(now)) is not None))
        least = min(least, max(everybody, FREE_SECONDS))
        small = SMALL_SECONDS - self._epoch[job] / 1000
        floor = max(ANEW_SECONDS, min(least, whole.limit - taken)) if anew else max(NOTHING, small)
        return max(floor, least - taken, left)

    def page_allowed(self, job: JobId, now: float) -> float | None:
        """Return how many seconds a page of a job's history may take. None: any."""
        allowed = self._bucket(self.paged, self.caller(job), now).allowed(now)
        return None if allowed is None else max(allowed, min(PAGE_SECONDS, self.together.limit))

    def page_took(self, job: JobId, seconds: float, now: float) -> None:
        """Record what a page took. A moment is free, as that of each epoch is."""
        caller = self.caller(job)
        self.pages.taken += seconds
        self.paged[caller] = self._bucket(self.paged, caller, now).charged(seconds, now)

    def taken(self, now: float) -> float:
        """Return how many seconds of this epoch its scans took. Scans that run beside each other are counted once."""
        return min(now - self.began, self._epoch.total() / 1000 + self.pages.taken)

    def failed(self, jobs: Collection[JobId], now: float) -> None:
        """End an epoch in which these jobs failed, and that is computed again: its callers have the less left for that.

        The callers of these jobs have nothing free, neither now nor then: both times take no more than one may.
        Other callers are charged as for any epoch: views that fail again and again must not drive out theirs.
        """
        at_fault = {self.caller(job) for job in jobs}
        for caller, ms in self._by_caller(self._epoch).items():
            if (seconds := ms / 1000) > FREE_SECONDS:
                seconds += 2 * FREE_SECONDS if caller in at_fault else 0
                self.slow[caller] = self._bucket(self.slow, caller, now).charged(seconds, now)

    def exceeding(self, now: float) -> Collection[JobId]:
        """Return the jobs that took more of an epoch that `failed` than they may take when it is computed again: each
        would cost one more recovery.
        """
        found: list[JobId] = []
        for job, ms in self._epoch.items():
            left = self._bucket(self.slow, self.caller(job), now).allowed(now)
            if left is not None and ms / 1000 > max(left, FREE_SECONDS, self._least.get(job, 0.0)):
                found.append(job)
        return found

    def exceeded(self, job: JobId, now: float) -> None:
        """Record that the changes of a job took too long. Its caller has spent all, for this generation and the next
        ones: views of one caller, each slow by another row, would hold up everybody one after the other.
        """
        self.slow[self.caller(job)] = CostBudget(self.together.limit, self.together.limit, now)

    def settle(self, waited: float, now: float) -> None:
        """End an epoch, in which everybody waited for so many seconds for the scans.

        If the views took too much together, the callers of the dearest have spent all: else other views of theirs would
        hold up everybody for as long again.
        """
        for caller, ms in self._by_caller(self._epoch).items():
            if caller in self.slow:
                self.slow[caller] = self._bucket(self.slow, caller, now).charged(min(waited, ms / 1000), now)
        seconds = min(waited, self._epoch.total() / 1000, self.together.limit)
        self.together = self.together.charged(seconds, now)
        if not self.together.spent:
            self._spent.clear()
            self._epochs = 0
        elif seconds > FREE_SECONDS:
            self._spent.update(self._epoch)
            self._epochs += 1
        self._epoch.clear()
        self._least.clear()
        self.pages.settle()
        if 0 < self.together.limit <= self.together.spent:
            self.over = self._dearest()
            for job in self.over:
                self.exceeded(job, now)
        elif self.together.spent < self.together.limit / 2:
            self.over = ()

    def _bucket(self, buckets: Mapping[str, CostBudget], caller: str, now: float) -> CostBudget:
        """Return a caller's bucket with the limit of this generation: it may have been made under another one."""
        known = buckets.get(caller)
        return CostBudget(self.together.limit, 0.0 if known is None else known.spent_at(now), now)

    def _dearest(self) -> Collection[JobId]:
        least = max(max(self._spent.values(), default=0) / 2, SMALL_SECONDS * 1000 * self._epochs)
        return frozenset(job for job, spent in self._spent.items() if spent >= least) or self._dearest_together()

    def _dearest_together(self) -> Collection[JobId]:
        """Return the dearest half of the small views of the caller whose views take most."""
        ((caller, most),) = self._by_caller(self._spent).most_common(1) or [("", 0)]
        if most < self._spent.total() * _MANY_SHARE:
            return ()
        its = [job for job, _ in self._spent.most_common() if self.caller(job) == caller]
        taken = accumulate(self._spent[job] for job in its)
        return frozenset(job for job, upto in zip(its, taken, strict=True) if upto - self._spent[job] < most / 2)

    def _by_caller(self, of_jobs: Counter[JobId]) -> Counter[str]:
        found = Counter[str]()
        for job, milliseconds in of_jobs.items():
            found[self.caller(job)] += milliseconds
        return found
