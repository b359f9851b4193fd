"""Counted figures grow with every commit of this process; measured ones are what the scrape read."""

from dataclasses import replace

from service.protocol.ids import ActorId, FragmentId, RelationId
from service.protocol.report import ActorReport
from service.telemetry.measures import FragmentMeasure, Measures, SnapshotMeasure
from service.telemetry.metrics import Metrics
from tests.bench.creating_jobs import transactions


def measures(*, upstream_of: dict[FragmentId, int]) -> Measures:
    return Measures(
        jobs={"Created": 2},
        queue_length=3,
        workers_alive=1,
        in_flight_barriers=1,
        uncommitted_barriers=2,
        barrier_interval_ms=250,
        recoveries=4,
        running=True,
        paused=False,
        committed_at=1.5,
        published_age_seconds=0.0,
        fragments=(FragmentMeasure(("1", "2", "", "3", 'm"\n', "TABLE", "A", "9", "TABLE", "0.0000% (0/0)")),),
        limits={FragmentId(2): 700, FragmentId(9): 1},
        upstream_of=upstream_of,
    )


def reported(fragment: int, actor: int, snapshot: int, upstream: int) -> ActorReport:
    return ActorReport(
        actor=ActorId(actor), fragment=FragmentId(fragment), rows=99, snapshot_rows=snapshot, upstream_rows=upstream
    )


def lines(metrics: Metrics, found: Measures) -> list[str]:
    return metrics.page(found).decode().splitlines()


def test_rows_add_up_by_actor_under_the_upstreams_name() -> None:
    metrics = Metrics()
    metrics.committed([reported(1, 10, 5, 0), reported(1, 11, 0, 2), reported(2, 20, 0, 0)], barriers=2)
    metrics.committed([reported(1, 10, 7, 1)], barriers=1)
    page = lines(metrics, measures(upstream_of={FragmentId(1): 77, FragmentId(2): 77}))
    assert 'stream_backfill_snapshot_read_row_count{actor_id="10",table_id="77"} 12.0' in page
    assert 'stream_backfill_upstream_output_row_count{actor_id="10",table_id="77"} 1.0' in page
    assert 'stream_backfill_upstream_output_row_count{actor_id="11",table_id="77"} 2.0' in page
    assert 'tidefill_barriers_committed_total{database_id="1"} 3.0' in page
    assert 'all_barrier_nums{database_id="1"} 2.0' in page
    assert not any('actor_id="20"' in line for line in page)


def test_rows_of_a_snapshot_job_are_told_by_stage() -> None:
    metrics = Metrics()
    metrics.committed([reported(1, 10, 5, 0)], barriers=1, replaying=True)
    metrics.committed([reported(1, 10, 0, 3), reported(2, 20, 4, 4)], barriers=1, replaying=True)
    metrics.committed([reported(1, 10, 0, 2)], barriers=1)
    known = measures(upstream_of={FragmentId(1): 77, FragmentId(2): 77})
    page = lines(metrics, replace(known, snapshot_scans=frozenset({FragmentId(1), FragmentId(3)})))
    name = "stream_snapshot_backfill_consume_snapshot_row_count"
    assert [line for line in page if line.startswith(name)] == [
        f'{name}{{actor_id="10",stage="{stage}",table_id="77"}} {rows}.0'
        for stage, rows in (("consuming_snapshot", 5), ("consuming_log_store", 3), ("consume_upstream", 2))
    ]
    assert 'stream_backfill_upstream_output_row_count{actor_id="10",table_id="77"} 5.0' in page


def test_snapshot_jobs_are_told_by_what_they_create() -> None:
    found = replace(
        measures(upstream_of={}), snapshots=(SnapshotMeasure(relation=RelationId(8), lag=3 << 16, in_flight=1),)
    )
    page = lines(Metrics(), found)
    assert f'meta_snapshot_backfill_upstream_lag{{table_id="8"}} {float(3 << 16)}' in page
    assert 'meta_snapshot_backfill_inflight_barrier_num{table_id="8"} 1.0' in page


def test_barriers_of_a_snapshot_job_are_timed_while_it_is_created() -> None:
    metrics, name = Metrics(), "meta_snapshot_backfill_barrier_duration_seconds"
    metrics.consumed(RelationId(8), "consuming_snapshot", seconds=0.25)
    metrics.consumed(RelationId(8), "consuming_snapshot", seconds=0.5)
    metrics.consumed(RelationId(8), "consuming_log_store", seconds=2.0)
    metrics.consumed(RelationId(9), "consuming_snapshot", seconds=1.0)
    left = replace(measures(upstream_of={}), snapshots=(SnapshotMeasure(relation=RelationId(8), lag=0, in_flight=0),))
    sums = [line for line in lines(metrics, left) if line.startswith(f"{name}_sum")]
    assert sums == [
        f'{name}_sum{{barrier_type="consuming_snapshot",table_id="8"}} 0.75',
        f'{name}_sum{{barrier_type="consuming_log_store",table_id="8"}} 2.0',
    ]
    assert not any(line.startswith(f"{name}_sum") for line in lines(metrics, measures(upstream_of={})))


def test_recoveries_are_timed() -> None:
    metrics = Metrics()
    metrics.recovered(seconds=4.0)
    page = lines(metrics, measures(upstream_of={}))
    assert 'recovery_latency_sum{database_id="1"} 4.0' in page


def test_the_counts_of_a_fragment_that_is_gone_are_forgotten() -> None:
    metrics = Metrics()
    metrics.committed([reported(1, 10, 5, 5)], barriers=1)
    gone = lines(metrics, measures(upstream_of={}))
    assert not any("actor_id" in line for line in gone)
    again = lines(metrics, measures(upstream_of={FragmentId(1): 77}))
    assert not any("actor_id" in line for line in again)


def test_the_limit_of_a_scan_is_shown_while_it_exists() -> None:
    page = lines(Metrics(), measures(upstream_of={FragmentId(2): 77}))
    assert [line for line in page if line.startswith("backfill_rate_limit_bytes")] == [
        'backfill_rate_limit_bytes{fragment_id="2",table_id="77"} 700.0'
    ]


def test_latency_is_counted_in_buckets() -> None:
    metrics = Metrics()
    for seconds in (0.04, 0.9, 1.9, 90):
        metrics.published(seconds=seconds)
    page = lines(metrics, measures(upstream_of={}))
    assert 'meta_barrier_duration_seconds_bucket{database_id="1",le="1.0"} 2.0' in page
    assert 'meta_barrier_duration_seconds_bucket{database_id="1",le="+Inf"} 4.0' in page


def test_a_barriers_transactions_are_counted_by_what_they_are_for() -> None:
    metrics = Metrics()
    metrics.transacted("commit", 0.15)
    metrics.transacted("commit", 0.25)
    metrics.transacted("inject", 0.5)
    page = lines(metrics, measures(upstream_of={}))
    assert 'tidefill_meta_store_seconds_sum{stage="commit"} 0.4' in page
    assert 'tidefill_meta_store_seconds_bucket{le="0.2",stage="commit"} 1.0' in page
    assert transactions("\n".join(page)) == {"commit": 0.4, "inject": 0.5, "barriers": 2.0}


def test_what_was_measured_is_shown() -> None:
    page = lines(Metrics(), measures(upstream_of={}))
    for line in (
        'tidefill_jobs{state="Created"} 2.0',
        "tidefill_queue_length 3.0",
        "tidefill_recoveries_total 4.0",
        "tidefill_graph_running 1.0",
        "tidefill_paused 0.0",
        'last_committed_barrier_time{database_id="1"} 1.5',
        'in_flight_barrier_nums{database_id="1"} 1.0',
        'meta_barrier_interval_by_database{database_id="1"} 250.0',
    ):
        assert line in page
    (info,) = [line for line in page if line.startswith("backfill_fragment_progress{")]
    assert 'backfill_progress="0.0000% (0/0)"' in info
    assert 'backfill_target_relation_name="m\\"\\n"' in info
