"""Which epochs are traced, and with which spans."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from service.domain.job import Job, JobState
from service.domain.trace import Span, SpanContext
from service.ports.records import BarrierRecord
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, JobId, RelationId
from service.protocol.mutation import Mutation, Pause
from service.protocol.relation import RelationKind
from service.protocol.report import Work
from service.telemetry.epoch_spans import EndedEpoch
from service.telemetry.traces import Traces
from tests.support.meta_store import NOW

SECOND = timedelta(seconds=1)
ASKED = SpanContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", sampled=True)


def after(milliseconds: float) -> datetime:
    return NOW + timedelta(milliseconds=milliseconds)


def epoch(took: float = 500, *, mutation: Mutation | None = None, committed: bool = True) -> EndedEpoch:
    """An epoch that took so many milliseconds, of which the worker took 300."""
    barrier = Barrier(
        graph=DATABASE_GRAPH,
        generation=Generation(3),
        prev=Epoch(7),
        curr=Epoch(8),
        kind=BarrierKind.CHECKPOINT,
        mutation=mutation,
    )
    record = BarrierRecord(
        barrier,
        NOW,
        after(400),
        after(450) if committed else None,
        after(took) if committed else None,
        None,
        {"epoch": 300},
    )
    work = (Work(name="scan 5", began_ms=10, ms=200), Work(name="scan 6", began_ms=210, ms=500))
    return EndedEpoch(record, after(took), work, "w")


def traces(ratio: float = 0) -> Traces:
    return Traces("here", ratio, lambda _: None, lambda: "id")


@pytest.mark.parametrize(
    ("ended", "ratio", "traced"),
    [
        (epoch(), 0, False),
        (epoch(), 1, True),
        (epoch(2000), 0, False),
        (epoch(2001), 0, True),
        (epoch(mutation=Pause()), 0, True),
        (epoch(committed=False), 0, True),
    ],
    ids=["usual", "sampled", "two intervals", "slower", "mutation", "abandoned"],
)
def test_which_epochs_are_traced(ended: EndedEpoch, ratio: float, traced: bool) -> None:
    spans = traces(ratio).epoch_ended(ended, SECOND)
    assert bool(spans) == traced
    assert all(span.context.sampled for span in spans)


def tree(spans: list[Span]) -> dict[str, tuple[str | None, float, float]]:
    """Return the parent's name, and the milliseconds from begin to end, of each span."""
    names = {span.context.span: span.name for span in spans}
    assert len(names) == len(spans)
    assert len({span.context.trace for span in spans}) == 1
    return {
        span.name: (
            None if span.parent is None else names[span.parent],
            (span.began - NOW) / timedelta(milliseconds=1),
            (span.ended - NOW) / timedelta(milliseconds=1),
        )
        for span in spans
    }


def test_the_spans_of_an_epoch() -> None:
    """The worker's part ends when its answer arrived. A scan that says it took longer than the epoch is cut."""
    spans = list(traces(1).epoch_ended(epoch(), SECOND))
    assert tree(spans) == {
        "epoch 8": (None, 0, 500),
        "collect": ("epoch 8", 0, 400),
        "commit": ("epoch 8", 400, 450),
        "publish": ("epoch 8", 450, 500),
        "run epoch": ("collect", 100, 400),
        "scan 5": ("run epoch", 110, 310),
        "scan 6": ("run epoch", 310, 400),
    }
    assert {span.name for span in spans if span.process == "worker"} == {"run epoch", "scan 5", "scan 6"}
    assert spans[0].attributes == {
        "tidefill.epoch": "8",
        "tidefill.graph": 1,
        "tidefill.generation": 3,
        "tidefill.barrier": "checkpoint",
        "tidefill.worker": "w",
        "tidefill.slow": False,
    }


def test_an_abandoned_epoch_says_how_far_it_came() -> None:
    ended = epoch(900, committed=False)
    spans = list(traces().epoch_ended(replace(ended, record=replace(ended.record, collected_at=None)), SECOND))
    assert tree(spans) == {"epoch 8": (None, 0, 900)}
    assert spans[0].failed


def test_the_context_that_the_worker_gets_is_that_of_the_epoch() -> None:
    (top, *_) = traces().epoch_ended(epoch(mutation=Pause()), SECOND)
    assert traces().of_epoch(DATABASE_GRAPH, Epoch(8), always=True) == top.context


@pytest.mark.parametrize("state", [JobState.CREATED, JobState.FAILED, JobState.CANCELLED])
def test_the_spans_of_a_job(state: JobState) -> None:
    job = Job(
        JobId(4),
        RelationId(4),
        "m",
        RelationKind.MATERIALIZED_VIEW,
        "SELECT 'secret'",
        state,
        True,
        NOW,
        after(10),
        after(30),
        "a row: secret",
    )
    spans = list(traces().job_ended(job, ASKED.traceparent))
    assert tree(spans) == {"job 4": (None, 0, 30), "queued": ("job 4", 0, 10), "creating": ("job 4", 10, 30)}
    assert spans[0].links == (ASKED,)
    assert spans[0].context == traces().of_job(JobId(4))
    assert spans[0].failed == (state is not JobState.CREATED)
    assert "secret" not in str(spans)


def test_a_job_that_never_started_was_queued_only() -> None:
    job = Job(
        JobId(4), RelationId(4), "m", RelationKind.MATERIALIZED_VIEW, "", JobState.CANCELLED, True, NOW, None, after(30)
    )
    assert tree(list(traces().job_ended(job, ASKED.traceparent))) == {
        "job 4": (None, 0, 30),
        "queued": ("job 4", 0, 30),
    }


@pytest.mark.parametrize(
    ("caller", "asks", "ratio", "sent"),
    [
        (None, False, 0, False),
        (None, False, 1, True),
        (None, True, 0, True),
        (ASKED, False, 0, True),
        (replace(ASKED, sampled=False), True, 1, False),
    ],
    ids=["usual", "sampled", "asked for a job", "its caller traces", "its caller does not"],
)
def test_which_requests_are_traced(caller: SpanContext | None, asks: bool, ratio: float, sent: bool) -> None:
    taken: list[Span] = []
    made = Traces("here", ratio, taken.extend, lambda: "id")
    request = made.request_began(caller)
    if asks:
        made.asked_for_job(request.traceparent)
    made.request_ended(request, caller, began=NOW, ended=after(5), method="POST", route="/v1/sql", status=200)
    assert bool(taken) == sent
    assert all(span.context.sampled for span in taken)
    if taken and caller is not None:
        assert (taken[0].context.trace, taken[0].parent) == (caller.trace, caller.span)
