"""Conditions that are provoked on a real service fire the chart's alerts in a real Prometheus."""

import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pytest
import yaml

from tests.support.dashboard import queries
from tests.support.debian import find_program
from tests.support.service import API_TOKEN, Service, data_directory, free_port, running
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.own_service]

ALERTS: Final = Path(__file__).parents[2] / "helm" / "tidefill" / "alerts.yaml"
OPERATIONS: Final = Path(__file__).parents[2] / "docs" / "operations.md"


@dataclass
class Prometheus:
    """Prometheus on loopback, with the chart's rules. They fire at once, instead of after minutes."""

    url: str

    def firing(self) -> set[str]:
        found = httpx.get(f"{self.url}/api/v1/alerts").json()["data"]["alerts"]
        return {one["labels"]["alertname"] for one in found if one["state"] == "firing"}

    def until_firing(self, *alerts: str) -> None:
        seen: set[str] = set()

        def all_seen() -> bool:
            seen.update(self.firing())
            return seen.issuperset(alerts)

        until(all_seen, what=lambda: f"{alerts}, seen {seen}")

    def samples(self, query: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query})
        assert answer.status_code == 200, (query, answer.text)
        return list(answer.json()["data"]["result"])

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready").status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def prometheus_of(service: Service, program: Path, place: Path) -> Generator[Prometheus]:
    rules = yaml.safe_load(ALERTS.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["for"] = "0s"
        # A recovery of a test's service takes seconds.
        rule["expr"] = rule["expr"].replace("(last_committed_barrier_time) > 60", "(last_committed_barrier_time) > 3")
    (place / "rules.yaml").write_text(yaml.safe_dump(rules))
    target = {"targets": [service.url.removeprefix("http://")]}
    scrape = {"job_name": "tidefill", "static_configs": [target], "authorization": {"credentials": API_TOKEN}}
    intervals = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config = {"global": intervals, "rule_files": ["rules.yaml"], "scrape_configs": [scrape]}
    (place / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        program,
        f"--config.file={place / 'prometheus.yaml'}",
        f"--storage.tsdb.path={place / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command, cwd=place)
    try:
        found = Prometheus(f"http://127.0.0.1:{port}")
        until(found.answers, what="prometheus answers")
        yield found
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Service, Prometheus]]:
    program = find_program("prometheus")
    if program is None:
        pytest.skip("needs prometheus")
    with (
        data_directory() as directory,
        running(Service(directory)) as service,
        prometheus_of(service, program, tmp_path) as prometheus,
    ):
        yield service, prometheus


@pytest.mark.soak
def test_provoked_conditions_fire_alerts(watched: tuple[Service, Prometheus]) -> None:
    service, prometheus = watched
    service.run("CREATE TABLE t (v int PRIMARY KEY)")
    service.run("INSERT INTO t SELECT * FROM generate_series(1, 1000) g")
    until(lambda: prometheus.samples("max(tidefill_leader) == 1"), what="the service is scraped")
    until(lambda: not prometheus.firing(), what=prometheus.firing)

    service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 1")
    for name in ("m", "n"):
        create = f"CREATE MATERIALIZED VIEW {name} WITH (backfill_rate_limit = 1) AS SELECT v FROM t"
        service.run(create, background_ddl="true")
    prometheus.until_firing("TidefillQueued")
    _check_names(service, prometheus)

    with ExitStack() as stack:
        most = int(service.stored("select current_setting('max_connections')")[0][0])
        for _ in range(most * 85 // 100 - service.stored("select count(*) from pg_stat_activity")[0][0]):
            stack.enter_context(psycopg.connect(service.database_url()))
        prometheus.until_firing("TidefillConnections")

    service.kill_worker()
    lost = ("TidefillNoWorker", "TidefillRecovering", "TidefillBarriersStalled")
    prometheus.until_firing(*lost)
    service.wait_ready()
    until(lambda: prometheus.firing().isdisjoint(lost), what=prometheus.firing)

    service.stop()
    prometheus.until_firing("TidefillAbsent")


def _check_names(service: Service, prometheus: Prometheus) -> None:
    """Every metric is in the reference and the other way round; panels and alerts name no others."""
    page = service.http.get("/metrics").text
    families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
    families = {one for one in families if not one.endswith("_created")}
    reference = OPERATIONS.read_text().partition("## Metrics")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in reference.splitlines() if line.startswith("| `")]
    assert {name.strip(" `") for row in rows for name in row.split(",")} == families
    series = {one.split("{")[0].split()[0] for one in page.splitlines() if one and not one.startswith("#")} | families
    series |= {f"{one}_bucket" for one in families}
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    for query in (*queries(), *(rule["expr"] for rule in rules)):
        asked = query.replace("$__rate_interval", "1m")
        prometheus.samples(asked)
        named = {word for word in _words(asked) if "_" in word and word not in _NOT_METRICS}
        assert named <= series, (query, named - series)


_NOT_METRICS: Final = frozenset(
    {
        "backfill_order",
        "backfill_progress",
        "backfill_rate_limit",
        "backfill_target_relation_name",
        "barrier_type",
        "fragment_id",
        "group_left",
        "histogram_quantile",
        "job_id",
        "table_id",
        "table_name",
    }
)
"""Labels, their values, and functions."""


def _words(query: str) -> set[str]:
    return {
        word
        for word in "".join(one if one.isalnum() or one in "_:" else " " for one in query).split()
        if word[0].isalpha()
    }
