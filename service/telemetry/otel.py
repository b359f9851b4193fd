"""Send spans to an OpenTelemetry collector by OTLP over HTTP. The only module that imports OpenTelemetry.

The exporter reads the standard variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, ..). A thread sends, and no caller waits
for it. Spans that do not fit into its queue, or that the collector does not take, are dropped and counted.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from queue import Empty, Full, Queue
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace import SpanContext as OtelContext

from service.domain.trace import Span, SpanContext
from service.telemetry.log import logger

QUEUE_MAX: Final = 256
"""How many groups of spans wait. A group is an epoch, a request, or the jobs that ended together."""
_BATCH: Final = 64
"""How many groups are sent together."""
_END_SECONDS: Final = 2.0
"""How long the end of the service waits until the queue is sent."""

log = logger("traces")


class Outlet:
    """The queue and its thread. `dropped` is told how many spans were lost."""

    def __init__(self, instance: str, dropped: Callable[[int], None], exporter: SpanExporter | None = None) -> None:
        # They would log each try, and quote what the collector answered.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter() if exporter is None else exporter
        self._dropped, self._failing = dropped, False
        self._resources = {
            process: Resource.create({SERVICE_NAME: _name(process), SERVICE_INSTANCE_ID: instance})
            for process in ("service", "worker")
        }
        self._queue: Queue[Sequence[Span] | None] = Queue(QUEUE_MAX)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def send(self, spans: Sequence[Span]) -> None:
        """Have spans sent, or drop them. Never waits."""
        if not spans:
            return
        try:
            self._queue.put_nowait(spans)
        except Full:
            self._lost(len(spans), "the queue is full")

    def close(self) -> None:
        """Send what waits, for a few seconds at most."""
        self._ended.set()
        with suppress(Full):  # a full queue has the thread awake already
            self._queue.put_nowait(None)
        self._thread.join(_END_SECONDS)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not (self._ended.is_set() and self._queue.empty()):
            self._export([_readable(span, self._resources[span.process]) for span in self._next()])

    def _next(self) -> Iterable[Span]:
        """Return the spans that wait, after the first ones have come."""
        groups = [self._queue.get()]
        try:
            while len(groups) < _BATCH:
                groups.append(self._queue.get_nowait())
        except Empty:
            pass
        return [span for group in groups for span in group or ()]

    def _export(self, spans: Sequence[ReadableSpan]) -> None:
        if not spans:
            return
        try:
            taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - whatever a collector does, the next spans are tried again
            taken = False
            log.debug("traces.not_sent", error=type(error).__name__)
        if not taken:
            self._lost(len(spans), "the collector does not take them")
        elif self._failing:
            self._failing = False
            log.info("traces.sent_again")

    def _lost(self, spans: int, reason: str) -> None:
        """Count the lost spans. Log once until the collector takes some again."""
        self._dropped(spans)
        if not self._failing:
            self._failing = True
            log.warning("traces.dropped", reason=reason)


def _name(process: str) -> str:
    """Return the name under which a part of tidefill appears, by `OTEL_SERVICE_NAME` where that is set."""
    return f"{os.environ.get('OTEL_SERVICE_NAME', 'tidefill')}-{process}"


def _readable(span: Span, resource: Resource) -> ReadableSpan:
    context = _context(span.context)
    parent = None if span.parent is None else _context(SpanContext(span.context.trace, span.parent, sampled=True))
    return ReadableSpan(
        name=span.name,
        context=context,
        parent=parent,
        resource=resource,
        attributes=span.attributes,
        links=[Link(_context(link)) for link in span.links],
        kind=SpanKind.SERVER if span.serves else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
        start_time=_nanoseconds(span.began),
        end_time=_nanoseconds(span.ended),
        instrumentation_scope=InstrumentationScope("tidefill"),
    )


def _context(context: SpanContext) -> OtelContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return OtelContext(int(context.trace, 16), int(context.span, 16), is_remote=False, trace_flags=flags)


def _nanoseconds(instant: datetime) -> int:
    return round(instant.timestamp() * 1_000_000) * 1_000
