"""The traces that this process makes: which ones, with which ids. `service.telemetry.otel` sends them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from service.domain.job import Job
from service.domain.trace import Span, SpanContext, child, parse_traceparent, root
from service.protocol.ids import Epoch, GraphId, JobId
from service.telemetry.epoch_spans import EndedEpoch, job_spans


@dataclass(frozen=True, slots=True)
class Traces:
    """Makes spans with the instants of what has ended. `ratio` is the share of epochs and requests that are traced.

    `installation` is in every id, so that two installations may send to one collector.
    """

    installation: str
    ratio: float
    send: Callable[[Sequence[Span]], None]
    """Takes spans without waiting, and drops them if there are too many."""
    new_id: Callable[[], str]
    """Makes the identity of a request."""
    _asking: set[str] = field(default_factory=set[str])
    """The contexts of the requests in progress that have asked for a job."""

    def of_epoch(self, graph: GraphId, epoch: Epoch, *, always: bool) -> SpanContext:
        """Return the context of an epoch's root span."""
        return root(self.ratio, self.installation, "epoch", graph, epoch, always=always)

    def of_job(self, job: JobId) -> SpanContext:
        """Return the context of a job's root span. Every job is traced."""
        return root(self.ratio, self.installation, "job", job, always=True)

    def epoch_ended(self, ended: EndedEpoch, interval: timedelta) -> Sequence[Span]:
        """Return the spans of an epoch, or none if it is not traced."""
        barrier = ended.record.barrier
        context = self.of_epoch(barrier.graph, barrier.curr, always=ended.always_traced(interval))
        return ended.spans(context, interval) if context.sampled else ()

    def job_ended(self, job: Job, traceparent: str) -> Sequence[Span]:
        """Return the spans of a job whose creation has ended. `traceparent` is that of the request."""
        asked = parse_traceparent(traceparent)
        return job_spans(job, self.of_job(job.id), () if asked is None else (asked,))

    def request_began(self, caller: SpanContext | None) -> SpanContext:
        """Return the context of a request's span, below the caller's if it sent one."""
        new = self.new_id()
        return root(self.ratio, self.installation, "request", new) if caller is None else child(caller, new)

    def asked_for_job(self, request: str) -> None:
        """Have the request that asked for a job traced, unless its caller decided otherwise."""
        self._asking.add(request)

    def request_ended(
        self,
        request: SpanContext,
        caller: SpanContext | None,
        *,
        began: datetime,
        ended: datetime,
        method: str,
        route: str,
        status: int,
    ) -> None:
        """Send the span of a request, if it is traced."""
        asked = request.traceparent in self._asking
        self._asking.discard(request.traceparent)
        if not (request.sampled or (caller is None and asked)):
            return
        told = {"http.request.method": method, "http.route": route, "http.response.status_code": status}
        context = SpanContext(request.trace, request.span, sampled=True)
        parent = None if caller is None else caller.span
        failed = status >= 500
        self.send([Span(f"{method} {route}", context, parent, began, ended, told, failed=failed, serves=True)])
