"""A collector of traces on loopback: it takes OTLP over HTTP and keeps the spans, refuses them, or hangs."""

import gzip
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Literal

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status


@dataclass(frozen=True)
class Taken:
    """A span that the collector has taken. Ids are hexadecimal; `parent` is empty for a root."""

    name: str
    process: str
    trace: str
    id: str
    parent: str
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    began: int
    ended: int
    failed: bool


@dataclass
class Collector:
    """Its way with the next requests, and the spans that it has taken."""

    mode: Literal["take", "refuse", "hang"] = "take"
    bodies: list[bytes] = field(default_factory=list[bytes])
    spans: list[Taken] = field(default_factory=list[Taken])
    asked: int = 0
    """How many requests came."""
    endpoint: str = ""
    over: Event = field(default_factory=Event)
    lock: Lock = field(default_factory=Lock)

    def named(self, name: str) -> list[Taken]:
        """Return the spans whose name begins so."""
        with self.lock:
            return [span for span in self.spans if span.name.startswith(name)]

    def below(self, parent: Taken) -> dict[str, Taken]:
        """Return the children of a span by name."""
        with self.lock:
            return {one.name: one for one in self.spans if (one.trace, one.parent) == (parent.trace, parent.id)}

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self.lock:
            self.bodies.append(body)
            self.spans += _taken(request)


def _taken(request: Any) -> Iterable[Taken]:
    for of_process in request.resource_spans:
        process = _values(of_process.resource.attributes)["service.name"]
        for span in (span for scope in of_process.scope_spans for span in scope.spans):
            yield Taken(
                span.name,
                process,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                _values(span.attributes),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                span.status.code == Status.STATUS_CODE_ERROR,
            )


def _values(attributes: Iterable[Any]) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collecting() -> Generator[Collector]:
    """Run a collector."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.asked += 1
            mode = collector.mode
            if mode == "hang":
                collector.over.wait()
                return
            if mode == "take":
                collector.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200 if mode == "take" else 400)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ARG002 - as in the base
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
