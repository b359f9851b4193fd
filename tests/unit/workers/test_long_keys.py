"""Long keys of positions cost the caller who has them a job, and others nothing."""

import pytest

from service.protocol.ids import ActorId, FragmentId, JobId, Vnode
from service.protocol.plan import ActorPlan, DmlPlan, JobPlan, PositionState, VnodePosition
from service.protocol.report import ActorReport
from tests.support.state_store import relation
from workers.runners.failure import JobFailedError
from workers.runners.long_keys import LONG, MOST, LongKeys

FOURTH = "x" * (MOST // 4)


def at(vnode: int, key: str | None) -> VnodePosition:
    state = PositionState.COMPLETED if key is None else PositionState.IN_PROGRESS
    return VnodePosition(vnode=Vnode(vnode), state=state, key=None if key is None else (key,), rows=1)


def job(number: int, caller: str, *positions: VnodePosition) -> JobPlan:
    actor = ActorPlan(id=ActorId(number), vnodes=((0, 7),), positions=positions)
    fragments = (DmlPlan(id=FragmentId(number), actors=(actor,)),)
    return JobPlan(id=JobId(number), relation=relation(number, f"v{number}"), fragments=fragments, caller=caller)


def told(number: int, *positions: VnodePosition) -> ActorReport:
    return ActorReport(actor=ActorId(number), fragment=FragmentId(number), rows=1, positions=positions)


def test_i13_a_job_whose_keys_are_too_large_for_an_answer_fails_by_its_own_fault() -> None:
    """The service refused the answer, and the shared graph recovered again and again, with nobody to blame."""
    keys = LongKeys()
    for one in (job(1, "alice"), job(2, "eve", at(0, FOURTH)), job(3, "eve")):
        keys.add(one)
    keys.check([told(1, at(0, FOURTH), at(1, FOURTH), at(2, "x" * LONG)), told(2, at(1, FOURTH))])
    # An earlier key of a vnode counts no more, and a completed vnode has none.
    keys.check([told(3, at(0, FOURTH)), told(2, at(0, None))])
    with pytest.raises(JobFailedError, match="of 16 MB") as failed:
        keys.check([told(2, at(0, FOURTH), at(2, FOURTH))])
    assert failed.value.job == 2, "the caller's job with most of it, and not the one of others"
    assert failed.value.deterministic
    assert "v2" in failed.value.reason


def test_jobs_that_are_gone_have_no_keys() -> None:
    keys = LongKeys()
    keys.add(job(1, "eve", *(at(vnode, FOURTH) for vnode in range(3))))
    keys.remove([JobId(1)])
    keys.add(job(2, "eve"))
    keys.check([told(2, *(at(vnode, FOURTH) for vnode in range(3)))])
