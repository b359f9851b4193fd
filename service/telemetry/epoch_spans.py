"""The spans of an epoch and of a job, as functions of what is recorded of them. Pure.

No span has the text of a statement or of an error: these may hold secrets and values of rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from service.domain.job import Job, JobState
from service.domain.trace import Span, SpanContext, child
from service.ports.records import BarrierRecord
from service.protocol.report import Work

SLOW_INTERVALS: Final = 2
"""An epoch that took more barrier intervals than this is always traced."""
_LOST: Final = frozenset({JobState.FAILED, JobState.CANCELLED})


@dataclass(frozen=True, slots=True)
class EndedEpoch:
    """An epoch that was published, committed in a partial graph, or abandoned. `work` is what its worker reported.

    `jobs` are the jobs that it added, and the one to which its partial graph belongs.
    """

    record: BarrierRecord
    ended: datetime
    work: Sequence[Work] = ()
    worker: str | None = None
    jobs: Sequence[SpanContext] = ()

    @property
    def abandoned(self) -> bool:
        """Whether nothing of it was committed."""
        return self.record.committed_at is None

    def always_traced(self, interval: timedelta) -> bool:
        """Whether it is traced whatever the ratio: by a mutation, its duration, or because it was abandoned."""
        mutated = self.record.barrier.mutation is not None
        return mutated or self.abandoned or self._is_slow(interval)

    def spans(self, epoch: SpanContext, interval: timedelta) -> list[Span]:
        """Return its spans: `epoch <n>`, and below it `collect`, `commit` and `publish` as far as it came."""
        record = self.record
        attributes = {**self._attributes(), "tidefill.slow": self._is_slow(interval)}
        name = f"epoch {record.barrier.curr}"
        top = Span(name, epoch, None, record.injected_at, self.ended, attributes, self.jobs, self.abandoned)
        steps = [
            ("collect", record.injected_at, record.collected_at),
            ("commit", record.collected_at, record.committed_at),
            ("publish", record.committed_at, record.published_at),
        ]
        below = [
            Span(step, child(epoch, step), epoch.span, began, ended)
            for step, began, ended in steps
            if began is not None and ended is not None
        ]
        return [top, *below, *self._run(child(epoch, "collect"))]

    def _is_slow(self, interval: timedelta) -> bool:
        return self.ended - self.record.injected_at > SLOW_INTERVALS * interval

    def _attributes(self) -> Mapping[str, str | int | bool]:
        barrier = self.record.barrier
        told: dict[str, str | int | bool] = {
            # As text, because tools that compute in doubles would round it.
            "tidefill.epoch": str(barrier.curr),
            "tidefill.graph": barrier.graph,
            "tidefill.generation": barrier.generation,
            "tidefill.barrier": barrier.kind,
        }
        if barrier.mutation is not None:
            told["tidefill.mutation"] = barrier.mutation.type
        return told | ({} if self.worker is None else {"tidefill.worker": self.worker})

    def _run(self, collect: SpanContext) -> list[Span]:
        """Return the worker's spans. They end when its answer arrived, so clocks that differ move none of them."""
        took, collected = self.record.timings_ms.get("epoch"), self.record.collected_at
        if took is None or collected is None:
            return []
        began = max(self.record.injected_at, collected - timedelta(milliseconds=took))
        run = child(collect, "run")
        spans = [Span("run epoch", run, collect.span, began, collected, self._attributes(), process="worker")]
        for one in self.work:
            since = began + timedelta(milliseconds=one.began_ms)
            until = min(collected, since + timedelta(milliseconds=one.ms))
            context = child(run, one.name)
            spans.append(Span(one.name, context, run.span, since, max(since, until), process="worker"))
        return spans


def job_spans(job: Job, root: SpanContext, asked: Sequence[SpanContext]) -> list[Span]:
    """Return the spans of a job whose creation has ended: its root, linked to the request, and its two parts."""
    assert job.finished_at is not None, job.id
    started = job.started_at or job.finished_at
    told: dict[str, str | int | bool] = {
        "tidefill.job": job.id,
        "tidefill.kind": job.kind,
        "tidefill.name": job.name,
        "tidefill.state": job.state,
    }
    lost = job.state in _LOST
    top = Span(f"job {job.id}", root, None, job.initialized_at, job.finished_at, told, asked, lost)
    waited = Span("queued", child(root, "queued"), root.span, job.initialized_at, started)
    creating = Span("creating", child(root, "creating"), root.span, started, job.finished_at, failed=lost)
    return [top, waited] if job.started_at is None else [top, waited, creating]
