"""Spans at a collector that takes them, is away, refuses or hangs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event

import pytest
from structlog.testing import capture_logs

from service.domain.errors import Invalid
from service.domain.trace import Span, child, root
from service.telemetry.otel import QUEUE_MAX, Outlet
from service.traces_choice import check_installed
from tests.support.collector import Collector, collecting
from tests.support.meta_store import NOW
from tests.support.waiting import until

TOP = root(1, "top")


@dataclass
class Lost:
    """How many spans were dropped."""

    spans: int = 0
    some: Event = field(default_factory=Event)

    def __call__(self, spans: int) -> None:
        self.spans += spans
        self.some.set()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        yield collector


def span(name: str = "epoch 1") -> Span:
    return Span(name, TOP, None, NOW, NOW + timedelta(seconds=1), {"tidefill.epoch": "1"}, (root(1, "job"),))


def test_the_collector_gets_what_was_made(collector: Collector) -> None:
    outlet = Outlet("here", Lost())
    inner = Span("run epoch", child(TOP, "run"), TOP.span, NOW, NOW, process="worker", failed=True)
    outlet.send([span(), inner])
    outlet.close()
    top, run = collector.spans
    assert (top.trace, top.id, top.parent, top.process) == (TOP.trace, TOP.span, "", "tidefill-service")
    assert (run.trace, run.parent, run.process, run.failed) == (TOP.trace, TOP.span, "tidefill-worker", True)
    assert top.ended - top.began == 1_000_000_000
    assert top.attributes == {"tidefill.epoch": "1"}
    assert top.links == ((root(1, "job").trace, root(1, "job").span),)


def test_a_collector_that_hangs_fills_the_queue_and_delays_nobody(collector: Collector) -> None:
    collector.mode = "hang"
    lost = Lost()
    with capture_logs() as logs:
        outlet = Outlet("here", lost)
        for _ in range(3 * QUEUE_MAX):
            outlet.send([span(), span("collect")])
        assert lost.spans >= 2 * QUEUE_MAX
        outlet.close()
    assert [entry["reason"] for entry in logs if entry["event"] == "traces.dropped"] == ["the queue is full"]
    assert collector.spans == []


@pytest.mark.parametrize("way", ["refuses", "is away"])
def test_what_is_not_taken_is_counted_and_told_once(
    collector: Collector, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.mode = "refuse"
    if way == "is away":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    lost = Lost()
    with capture_logs() as logs:
        outlet = Outlet("here", lost)
        for number in range(1, 4):
            outlet.send([span()])
            until(lambda number=number: lost.spans == number, what=lambda: lost)
        if way == "refuses":
            collector.mode = "take"
            outlet.send([span()])
            until(lambda: collector.spans or None, what="a span")
        outlet.close()
    told = [entry["event"] for entry in logs if entry["event"].startswith("traces.")]
    assert told == ["traces.dropped", *(["traces.sent_again"] if way == "refuses" else [])]


def test_without_the_packages_the_service_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(Invalid, match=r"pip install 'tidefill\[otel\]'"):
        check_installed()
