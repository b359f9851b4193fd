"""Queued jobs of several tenants start alternately: nobody starves, and the places that are shown are true."""

from dataclasses import dataclass
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from service.domain.fair_queue import Queued, Share, start_order
from service.protocol.ids import JobId
from tests.support.meta_store import NOW

TENANTS = st.sampled_from(["", "a", "b", "c", "d"])


@dataclass
class Work:
    """A job of the model. It started at its `start`-th start of all, None while it is queued."""

    tenant: str
    start: int | None = None


class Queues(RuleBasedStateMachine):
    """Jobs are asked for, cancelled, started and ended at random, while the number of permits changes.

    The model finds the next job from the rule's words alone, one tenant after the other.
    """

    @initialize(permits=st.integers(1, 3))
    def begin(self, permits: int) -> None:
        self.permits, self.starts, self.ids = permits, 0, 0
        self.queued: dict[JobId, Work] = {}
        self.running: dict[JobId, Work] = {}
        self.last: dict[str, int] = {}
        self.passed: dict[str, list[str]] = {}
        """For each tenant that waits and runs nothing: who has started a job meanwhile."""

    @rule(tenant=TENANTS, count=st.integers(1, 6))
    def ask(self, tenant: str, count: int) -> None:
        for _ in range(count):
            self.ids += 1
            self.queued[JobId(self.ids)] = Work(tenant)

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        del self.queued[data.draw(st.sampled_from(list(self.queued)))]

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        del self.running[data.draw(st.sampled_from(list(self.running)))]

    @rule(permits=st.integers(1, 3))
    def alter(self, permits: int) -> None:
        self.permits = permits

    @precondition(lambda self: self.queued and len(self.running) < self.permits)
    @rule()
    def start(self) -> None:
        job = self.order()[0]
        assert job == self.expected()
        work = self.running[job] = self.queued.pop(job)
        self.starts += 1
        work.start = self.last[work.tenant] = self.starts
        self.passed.pop(work.tenant, None)
        for others in self.passed.values():
            others.append(work.tenant)

    def order(self) -> list[JobId]:
        shares = {
            tenant: Share(self.held(tenant), None if at is None else NOW + timedelta(seconds=at))
            for tenant in {work.tenant for work in self.queued.values()}
            for at in (self.last.get(tenant),)
        }
        return start_order([Queued(job, work.tenant) for job, work in self.queued.items()], shares)

    def held(self, tenant: str) -> int:
        return sum(work.tenant == tenant for work in self.running.values())

    def expected(self) -> JobId:
        """Return the next job: no tenant that waits runs less, and none of those that run as little waits longer."""
        oldest: dict[str, JobId] = {}
        for job, work in self.queued.items():
            oldest.setdefault(work.tenant, job)
        fewest = min(map(self.held, oldest))
        among = [tenant for tenant in oldest if self.held(tenant) == fewest]
        never = [tenant for tenant in among if tenant not in self.last]
        if never:
            return min(oldest[tenant] for tenant in never)
        return oldest[min(among, key=lambda tenant: self.last[tenant])]

    @invariant()
    def nobody_starves(self) -> None:
        """While a tenant waits and runs nothing, each other tenant starts at most one job."""
        waiting = {work.tenant for work in self.queued.values()}
        waiting -= {work.tenant for work in self.running.values()}
        self.passed = {tenant: self.passed.get(tenant, []) for tenant in waiting}
        for others in self.passed.values():
            assert len(set(others)) == len(others)

    @invariant()
    def everyone_has_a_place_and_a_tenants_jobs_keep_their_order(self) -> None:
        order = self.order()
        assert sorted(order) == list(self.queued)
        for tenant in {work.tenant for work in self.queued.values()}:
            mine = [job for job in order if self.queued[job].tenant == tenant]
            assert mine == sorted(mine)


TestQueues = Queues.TestCase


@given(st.lists(TENANTS, max_size=12), TENANTS, st.permutations(["", "a", "b", "c", "d"]))
def test_with_one_permit_the_places_stay_true_to_the_end(asked: list[str], running: str, lately: list[str]) -> None:
    """As long as nobody asks for more, jobs start in the order that was shown, however often a permit is returned."""
    last = {tenant: NOW + timedelta(seconds=at) for at, tenant in enumerate(lately)}
    last[running] = NOW + timedelta(minutes=1)
    queued = [Queued(JobId(number), tenant) for number, tenant in enumerate(asked, 1)]
    shown = start_order(queued, {tenant: Share(int(tenant == running), at) for tenant, at in last.items()})
    started: list[JobId] = []
    while queued:
        job = start_order(queued, {tenant: Share(0, at) for tenant, at in last.items()})[0]
        (one,) = (one for one in queued if one.job == job)
        queued.remove(one)
        started.append(job)
        last[one.tenant] = NOW + timedelta(hours=len(started))
    assert started == shown
