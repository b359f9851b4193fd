"""Traces from the request to the job, the epoch and the scan, at a collector that also hangs."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.support.collector import Collector, Taken, collecting
from tests.support.service import API_TOKEN, ARRANGEMENT, WORKER_TOKEN, Service, data_directory
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.own_service]

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PASSWORD, LITERAL, HEADER = "pa55word-of-a-source", "literal-of-a-statement", "token-of-the-collector"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(collector: Collector) -> Iterator[Service]:
    """A service that traces only what it always traces."""
    with data_directory() as directory:
        environment = {
            "TIDEFILL_OTEL": "on",
            "TIDEFILL_OTEL_RATIO": "0",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={HEADER}",
        }
        service = Service(directory, environment)
        try:
            service.start()
            yield service
            collector.mode = "hang"
            service.stop()
        finally:
            service.clear()


def found(collector: Collector, called: str, **attributes: object) -> Taken:
    """Wait for the one span with this name and these attributes."""

    def look() -> Taken | None:
        wanted = {f"tidefill.{key}": value for key, value in attributes.items()}
        named = [span for span in collector.named(called) if wanted.items() <= span.attributes.items()]
        return named[-1] if named else None

    until(look, what=lambda: [(span.name, span.attributes) for span in collector.spans])
    span = look()
    assert span is not None
    return span


@pytest.mark.soak
def test_a_view_is_traced_from_the_request_to_its_scans(traced: Service, collector: Collector) -> None:
    collector.mode = "take"
    traced.run("CREATE TABLE t (id int PRIMARY KEY, k text)")
    traced.run("INSERT INTO t SELECT g, 'k' FROM generate_series(1, 20000) g")
    text = f"CREATE MATERIALIZED VIEW m AS SELECT id, k FROM t WHERE k <> '{LITERAL}'"
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    answer = traced.post("/v1/sql", {"sql": text, "session": ARRANGEMENT}, headers=headers)
    job = answer["job"]

    root = found(collector, "job ", name="m")
    assert root.name == f"job {job}"
    until(lambda: asked(collector) or None, what="the span of the call, which is sent after its answer")
    (request,) = asked(collector)
    assert (request.parent, request.attributes["http.response.status_code"]) == (CALLER, 200)
    assert (root.parent, root.links) == ("", ((TRACE, request.id),))
    assert root.trace != TRACE
    assert set(collector.below(root)) == {"queued", "creating"}

    epoch = next(span for span in collector.named("epoch ") if (root.trace, root.id) in span.links)
    assert (epoch.parent, epoch.attributes["tidefill.mutation"]) == ("", "add")
    steps = collector.below(epoch)
    assert list(steps) == ["collect", "commit", "publish"]
    run = collector.below(steps["collect"])["run epoch"]
    assert (epoch.process, run.process) == ("tidefill-service", "tidefill-worker")
    ((fragment,),) = traced.stored(f"select id from tidefill.fragment where job = {job} and kind = 'STREAM_SCAN'")
    scan = collector.below(run)[f"scan {fragment}"]
    assert run.began <= scan.began < scan.ended <= run.ended <= epoch.ended


@pytest.mark.soak
def test_nothing_secret_is_in_a_span(traced: Service, collector: Collector) -> None:
    """Statements hold passwords and values; a span has none of their words, and no address or token."""
    collector.mode = "take"
    traced.run(f"CREATE SECRET hidden WITH (backend = 'meta') AS '{PASSWORD}'")
    url = f"postgresql://u:{PASSWORD}@127.0.0.1:1/d"
    options = f"connector = 'postgres-cdc', hostname = '127.0.0.1', port = '1', username = 'u', password = '{PASSWORD}'"
    traced.refused(f"CREATE SOURCE s WITH ({options}, \"database.name\" = 'd', comment = '{url}')")
    traced.run("CREATE TABLE secrets (id int PRIMARY KEY, v text)")
    traced.run(f"INSERT INTO secrets VALUES (1, '{LITERAL}')")
    traced.refused("CREATE MATERIALIZED VIEW of_secrets AS SELECT id, 1 / (length(v) - length(v)) AS q FROM secrets")
    found(collector, "job ", name="of_secrets")
    until(lambda: any(span.failed for span in collector.named("epoch ")), what="an epoch that was abandoned")
    sent = b"".join(collector.bodies)
    assert b"of_secrets" in sent
    for word in (PASSWORD, LITERAL, HEADER, API_TOKEN, WORKER_TOKEN, "postgresql://", "SELECT", "DIVIDE"):
        assert word.encode() not in sent, word


@pytest.mark.soak
def test_a_collector_that_hangs_delays_nothing(traced: Service, collector: Collector) -> None:
    collector.mode = "hang"
    before, came, generation = dropped(traced), collector.asked, traced.graph()["generation"]
    traced.run("CREATE TABLE h (id int PRIMARY KEY)")
    for number in range(5):
        traced.run(f"CREATE MATERIALIZED VIEW h{number} AS SELECT id FROM h", **ARRANGEMENT)
    until(lambda: dropped(traced) > before, what="spans that were dropped")
    assert collector.asked > came
    assert traced.graph()["generation"] == generation
    collector.mode = "take"
    traced.run("CREATE TABLE later (id int PRIMARY KEY)")
    found(collector, "job ", name="later")
    until(lambda: logged(traced, "traces.sent_again") or None, what=traced.log_tail)
    assert len(logged(traced, "traces.dropped")) <= len(logged(traced, "traces.sent_again")) + 1


def asked(collector: Collector) -> list[Taken]:
    return [span for span in collector.named("POST /v1/sql") if span.trace == TRACE]


def dropped(service: Service) -> float:
    (count,) = re.findall(r"^tidefill_spans_dropped_total (\S+)$", service.http.get("/metrics").text, re.MULTILINE)
    return float(count)


def logged(service: Service, event: str) -> list[dict[str, object]]:
    lines = [line for line in service.log.read_text(errors="replace").splitlines() if f'"{event}"' in line]
    return [json.loads(line) for line in lines]
