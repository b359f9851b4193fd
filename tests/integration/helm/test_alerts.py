"""Each alert fires for what it is named after, and not for less, by Prometheus's own judgement."""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.dashboard import FILE, dashboard
from tests.support.debian import find_program

ROOT: Final = Path(__file__).parents[3]
ALERTS: Final = ROOT / "helm" / "tidefill" / "alerts.yaml"
WELL: Final[Mapping[str, str]] = {
    'tidefill_leader{pod="a"}': "1x200",
    'tidefill_leader{pod="b"}': "0x200",
    "last_committed_barrier_time": "0+60x200",
    "tidefill_graph_running": "1x200",
    "tidefill_workers_alive": "1x200",
}
"""A service of two that is well, a sample a minute."""


@dataclass(frozen=True)
class Case:
    """A series of samples that makes an alert fire at a minute, and one that does not. `less` differs in its values."""

    alert: str
    series: str
    samples: str
    less: str
    minute: int
    summary: str
    severity: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    more: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further series of both."""


_LATENCY: Final = "meta_barrier_duration_seconds_bucket"
CASES: Final[Sequence[Case]] = (
    Case(
        "TidefillAbsent", "tidefill_leader", "_x200", "0x6 _x200", 8, "No service of tidefill is scraped.", "critical"
    ),
    Case(
        "TidefillNoLeader",
        'tidefill_leader{pod="a"}',
        "1 0x200",
        "1 0 1x200",
        3,
        "No service leads. Barriers and jobs stand still.",
        "critical",
    ),
    Case(
        "TidefillSeveralLeaders",
        'tidefill_leader{pod="b"}',
        "1x200",
        "0x200",
        3,
        "2 services believe that they lead.",
        "warning",
    ),
    Case(
        "TidefillBarriersStalled",
        "last_committed_barrier_time",
        "0 60x200",
        "0+60x200",
        3,
        "No barrier was committed for 2m 0s.",
        "critical",
    ),
    Case(
        "TidefillBarriersSlow",
        f'{_LATENCY}{{le="2"}}',
        "0x200",
        "0+60x200",
        30,
        "The p99 of barrier latency is 9.92s.",
        "warning",
        more={f'{_LATENCY}{{le="10"}}': "0+60x200", f'{_LATENCY}{{le="+Inf"}}': "0+60x200"}
        | {"meta_barrier_interval_by_database": "1000x200"},
    ),
    Case(
        "TidefillRecovering",
        "tidefill_graph_running",
        "1 0x200",
        "1 0 1x200",
        4,
        "The database graph does not run.",
        "critical",
    ),
    Case(
        "TidefillRecoveries",
        "tidefill_recoveries_total",
        "0x10 1+1x10 11x200",
        "0x10 1x200",
        20,
        "The database graph recovered 10 times in 15 minutes.",
        "warning",
    ),
    Case("TidefillNoWorker", "tidefill_workers_alive", "1 0x200", "1 0 1x200", 3, "No worker is alive.", "critical"),
    Case(
        "TidefillWorkerHeldUp",
        'tidefill_worker_held_up_seconds{graph="1",cause="image"}',
        "0+60x200",
        "0+60x4 0x200",
        6,
        "The pod of a worker of graph 1 has not started for 6m 0s (image).",
        "warning",
        {"graph": "1", "cause": "image"},
    ),
    Case(
        "TidefillJobBroken",
        'tidefill_job_broken{job_id="7",name="m",state="broken",pod="a"}',
        "1x200",
        "_x200",
        1,
        "m is broken: it is not kept current.",
        "critical",
        {"job_id": "7", "name": "m", "state": "broken"},
    ),
    Case(
        "TidefillJobWaits",
        'tidefill_job_waiting_seconds{job_id="7",name="m",reason="worker"}',
        "0+60x200",
        "0+60x10 0x200",
        31,
        "m waits for 31m 0s (worker).",
        "warning",
        {"job_id": "7", "name": "m", "reason": "worker"},
        {'tidefill_job_waiting_seconds{job_id="8",name="n",reason="pause"}': "0+60x200"},
    ),
    Case("TidefillQueued", "tidefill_queue_length", "3x200", "3x30 0 3x200", 61, "3 jobs wait for a permit.", "info"),
    Case(
        "TidefillSnapshotLagGrows",
        'meta_snapshot_backfill_upstream_lag{table_id="9"}',
        "0+1000x200",
        "1000000-1000x200",
        65,
        "The snapshot job of relation 9 falls behind its upstream.",
        "warning",
        {"table_id": "9"},
    ),
    Case(
        "TidefillSourceLags",
        'tidefill_cdc_lag_bytes{source="shop"}',
        "2147483648x200",
        "1000x200",
        11,
        "2GiB of the log of shop are not decoded.",
        "warning",
        {"source": "shop"},
    ),
    Case(
        "TidefillSourceRetainsLog",
        'tidefill_cdc_retained_bytes{source="shop"}',
        "32212254720x200",
        "1000x200",
        1,
        "The slot of shop makes its server keep 30GiB of log.",
        "critical",
        {"source": "shop"},
    ),
    Case(
        "TidefillConnections",
        "tidefill_store_connections",
        "90x200",
        "70x200",
        6,
        "90% of the connections of the state store are in use.",
        "warning",
        more={"tidefill_store_connections_max": "100x200"},
    ),
)


@pytest.fixture(scope="module")
def promtool() -> Path:
    found = find_program("promtool")
    if found is None:
        pytest.skip("needs promtool")
    return found


def _test(case: Case, samples: str, *, fires: bool) -> dict[str, Any]:
    well = {} if case.alert == "TidefillAbsent" else WELL
    series = {**well, **case.more, case.series: samples}
    expected = {
        "exp_labels": {"severity": case.severity, **case.labels},
        "exp_annotations": {"summary": case.summary},
    }
    return {
        "name": f"{case.alert} {'fires' if fires else 'does not fire'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{case.minute}m", "alertname": case.alert, "exp_alerts": [expected] if fires else []}
        ],
    }


def test_each_alert_fires_for_what_it_says_and_for_no_less(promtool: Path, tmp_path: Path) -> None:
    tests = [
        _test(case, samples, fires=fires)
        for case in CASES
        for samples, fires in ((case.samples, True), (case.less, False))
    ]
    file = tmp_path / "alerts_test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "30s", "tests": tests}))
    ran = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {case.alert for case in CASES} == {rule["alert"] for rule in _rules()}


def test_rules_are_well_formed(promtool: Path) -> None:
    ran = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_dashboard_is_what_its_panels_say() -> None:
    assert json.loads(FILE.read_text()) == dashboard(), "run python -m tests.support.dashboard"


def test_each_alert_has_a_section_of_the_runbook() -> None:
    sections = re.findall(r"^### (\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in _rules()]


def _rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
