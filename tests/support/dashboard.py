"""The Grafana dashboard of the chart: `python -m tests.support.dashboard` writes it.

Panels are a list of titles, units and queries. The places on the grid follow from their order.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[2] / "helm" / "tidefill" / "dashboards" / "tidefill.json"
_WIDTH: Final = 24
_HEIGHT: Final = 7
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_RATE: Final = "$__rate_interval"
_SCAN: Final = ("backfill_target_relation_name", "fragment_id", "backfill_progress")
_NAMED: Final = " * on (table_id) group_left (table_name) max by (table_id, table_name) (table_info)"


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: queries with their legends, and the unit that Grafana shows."""

    title: str
    text: str
    unit: str
    queries: Sequence[tuple[str, str]]
    kind: str = "timeseries"
    width: int = 8


def _rows(metric: str) -> str:
    return f"sum by (table_id) (rate({metric}[{_RATE}])){_NAMED}"


def _quantile(share: float, metric: str, by: str = "le") -> str:
    return f"histogram_quantile({share}, sum by ({by}) (rate({metric}_bucket[{_RATE}])))"


ROWS: Final[Sequence[tuple[str, Sequence[Panel]]]] = (
    (
        "Overview",
        (
            Panel("Leaders", "Services that lead: 1.", "none", [("sum(tidefill_leader)", "")], "stat", 4),
            Panel("Workers", "Workers whose lease runs.", "none", [("max(tidefill_workers_alive)", "")], "stat", 4),
            Panel("Graph runs", "0 while it recovers.", "bool", [("min(tidefill_graph_running)", "")], "stat", 4),
            Panel("Paused", "1 while every backfill is paused.", "bool", [("max(tidefill_paused)", "")], "stat", 4),
            Panel("Queued jobs", "Jobs without a permit.", "none", [("max(tidefill_queue_length)", "")], "stat", 4),
            Panel(
                "Age of what readers see",
                "Since the newest published epoch.",
                "s",
                [("max(tidefill_published_age_seconds)", "")],
                "stat",
                4,
            ),
            Panel("Jobs", "By state.", "none", [("max by (state) (tidefill_jobs)", "{{state}}")]),
            Panel(
                "Jobs that wait",
                "For how long, and why.",
                "s",
                [("max by (name, reason) (tidefill_job_waiting_seconds)", "{{name}}: {{reason}}")],
            ),
            Panel(
                "Jobs that are not kept current",
                "Broken, failed or stale.",
                "none",
                [("max by (name, state) (tidefill_job_broken)", "{{name}}: {{state}}")],
            ),
        ),
    ),
    (
        "Barriers",
        (
            Panel(
                "Barrier latency",
                "Injected to published.",
                "s",
                [
                    *((_quantile(one, "meta_barrier_duration_seconds"), f"p{one * 100:g}") for one in (0.5, 0.9, 0.99)),
                    ("max(meta_barrier_interval_by_database) / 1000", "interval"),
                ],
            ),
            Panel(
                "Barriers that are not committed",
                "In flight, and in all.",
                "none",
                [("max(in_flight_barrier_nums)", "in flight"), ("max(all_barrier_nums)", "all")],
            ),
            Panel(
                "Barriers committed",
                "Per second.",
                "ops",
                [(f"sum(rate(tidefill_barriers_committed_total[{_RATE}]))", "")],
            ),
            Panel(
                "Time since the last commit",
                "Grows while barriers are stalled.",
                "s",
                [("time() - max(last_committed_barrier_time)", "")],
            ),
            Panel(
                "Recoveries",
                "In the last hour, and how long they take.",
                "none",
                [
                    ("max(increase(tidefill_recoveries_total[1h]))", "recoveries"),
                    (_quantile(0.9, "recovery_latency"), "p90, s"),
                ],
            ),
            Panel(
                "Meta store transactions of a barrier",
                "p90 by stage.",
                "s",
                [(_quantile(0.9, "tidefill_meta_store_seconds", "le, stage"), "{{stage}}")],
            ),
        ),
    ),
    (
        "Backfill",
        (
            Panel(
                "Rows of history read",
                "By upstream.",
                "rowsps",
                [(_rows("stream_backfill_snapshot_read_row_count"), "{{table_name}}")],
            ),
            Panel(
                "Live changes forwarded",
                "By upstream.",
                "rowsps",
                [(_rows("stream_backfill_upstream_output_row_count"), "{{table_name}}")],
            ),
            Panel(
                "Rate limits",
                "Rows per second and actor.",
                "rowsps",
                [("max by (fragment_id) (backfill_rate_limit_bytes)", "fragment {{fragment_id}}")],
            ),
            Panel(
                "Scans of unfinished jobs",
                "Their progress.",
                "none",
                [
                    (
                        f"max by ({', '.join(_SCAN)}) (backfill_fragment_progress)",
                        "{{backfill_target_relation_name}} {{fragment_id}}: {{backfill_progress}}",
                    )
                ],
                "table",
                24,
            ),
        ),
    ),
    (
        "Snapshot backfill",
        (
            Panel(
                "Lag behind what is committed",
                "Of jobs that are created.",
                "s",
                [(f"max by (table_id) (meta_snapshot_backfill_upstream_lag) / 65536 / 1000{_NAMED}", "{{table_name}}")],
            ),
            Panel(
                "Rows consumed",
                "By stage.",
                "rowsps",
                [
                    (
                        f"sum by (stage) (rate(stream_snapshot_backfill_consume_snapshot_row_count[{_RATE}]))",
                        "{{stage}}",
                    )
                ],
            ),
            Panel(
                "Barriers of a job's own graph",
                "p90, and how many are not committed.",
                "s",
                [
                    (
                        _quantile(0.9, "meta_snapshot_backfill_barrier_duration_seconds", "le, barrier_type"),
                        "{{barrier_type}}",
                    ),
                    ("sum(meta_snapshot_backfill_inflight_barrier_num)", "not committed"),
                ],
            ),
        ),
    ),
    (
        "Sources",
        (
            Panel("Log to decode", "By source.", "bytes", [("max by (source) (tidefill_cdc_lag_bytes)", "{{source}}")]),
            Panel(
                "Log that slots retain",
                "By source.",
                "bytes",
                [("max by (source) (tidefill_cdc_retained_bytes)", "{{source}}")],
            ),
            Panel(
                "Age of the last decoded commit",
                "By source.",
                "s",
                [("max by (source) (tidefill_cdc_commit_lag_seconds)", "{{source}}")],
            ),
            Panel(
                "Rows of external tables",
                "History and changes.",
                "rowsps",
                [
                    (_rows("stream_cdc_backfill_snapshot_read_row_count"), "{{table_name}}, history"),
                    (_rows("stream_cdc_backfill_upstream_output_row_count"), "{{table_name}}, changes"),
                ],
            ),
        ),
    ),
    (
        "Service and stores",
        (
            Panel(
                "Connections of the state store",
                "Used, and the most there may be.",
                "none",
                [("max(tidefill_store_connections)", "used"), ("max(tidefill_store_connections_max)", "max")],
            ),
            Panel(
                "Event loop",
                "How late it is: p99, and the longest.",
                "s",
                [
                    (_quantile(0.99, "tidefill_event_loop_stall_seconds"), "p99"),
                    ("max(tidefill_event_loop_stall_max_seconds)", "longest"),
                ],
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "gridPos": _place(0, top, _WIDTH, 1), "panels": []})
        top, left = top + 1, 0
        for one in row:
            if left + one.width > _WIDTH:
                top, left = top + _HEIGHT, 0
            panels.append(_panel(one, _place(left, top, one.width, _HEIGHT)))
            left += one.width
        top += _HEIGHT
    for number, panel in enumerate(panels, start=1):
        panel["id"] = number
    return {
        "title": "tidefill",
        "uid": "tidefill",
        "tags": ["tidefill"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def queries() -> list[str]:
    """Return the queries of all panels."""
    return [query for _, row in ROWS for panel in row for query, _ in panel.queries]


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(one: Panel, place: dict[str, int]) -> dict[str, Any]:
    instant = one.kind != "timeseries"
    return {
        "type": one.kind,
        "title": one.title,
        "description": one.text,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": one.unit}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _DATASOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                "instant": instant,
                "range": not instant,
            }
            for number, (query, legend) in enumerate(one.queries)
        ],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n")
