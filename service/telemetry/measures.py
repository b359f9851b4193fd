"""The gauges of the metrics page, from values that were read from the stores for one scrape. Pure.

They are right in every service process. Names are RisingWave's where it has the same metric.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from service.protocol.ids import DATABASE_GRAPH, FragmentId, RelationId

DATABASE_LABELS: Final = ("database_id",)
_FRAGMENT_LABELS: Final = (
    "job_id",
    "fragment_id",
    "backfill_state_table_id",
    "backfill_target_relation_id",
    "backfill_target_relation_name",
    "backfill_target_relation_type",
    "backfill_type",
    "backfill_epoch",
    "upstream_type",
    "backfill_progress",
)
_TABLE_LABELS: Final = (
    "materialized_view_id",
    "table_id",
    "fragment_id",
    "table_name",
    "table_type",
    "compaction_group_id",
)
"""As RisingWave's panels join it. A relation's versions are in one table, which belongs to no fragment or group."""


@dataclass(frozen=True, slots=True)
class FragmentMeasure:
    """One scan fragment of an unfinished job: the label values of `backfill_fragment_progress`, in the order of its
    labels.
    """

    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceMeasure:
    """The progress of one source; None is unknown."""

    name: str
    lag_bytes: int | None
    retained_bytes: int | None
    commit_lag_ms: float | None


@dataclass(frozen=True, slots=True)
class SnapshotMeasure:
    """The progress of one snapshot job in a partial graph. `relation` is the one that it creates.

    `lag` is the difference of two epoch numbers.
    """

    relation: RelationId
    lag: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class RelationMeasure:
    """A relation, for the names of others' `table_id`. `kind` is as in `table_type`: TABLE, MATERIALIZED_VIEW, .."""

    relation: RelationId
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class WaitMeasure:
    """A job that waits: its reason, and for how long. `seconds` is None where the beginning is not recorded."""

    job: int
    name: str
    reason: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class HeldUpMeasure:
    """A worker that a cluster does not start: the graph that it is to serve, the cause, and for how long."""

    graph: int
    cause: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ConnectionsMeasure:
    """The connections of the state store's server, and the most that it accepts."""

    connections: int
    connections_max: int


@dataclass(frozen=True, slots=True)
class Measures:
    """The values that were read from the meta store for one scrape.

    `limits` are the rate limits of scans of unfinished jobs, where there is one. `upstream_of` maps each existing scan
    fragment to its upstream's relation id. `committed_at` is in Unix seconds.
    """

    jobs: Mapping[str, int]
    queue_length: int
    workers_alive: int
    in_flight_barriers: int
    uncommitted_barriers: int
    barrier_interval_ms: int
    recoveries: int
    running: bool
    paused: bool
    committed_at: float
    published_age_seconds: float
    fragments: tuple[FragmentMeasure, ...]
    limits: Mapping[FragmentId, int]
    upstream_of: Mapping[FragmentId, int]
    follower_of: Mapping[FragmentId, int] = field(default_factory=dict[FragmentId, int])
    """Maps each scan of an external table to the relation id of its table."""
    sources: tuple[SourceMeasure, ...] = ()
    snapshots: tuple[SnapshotMeasure, ...] = ()
    broken: tuple[tuple[str, str, str], ...] = ()
    """Job id, name and state of each relation that is not kept current."""
    snapshot_scans: frozenset[FragmentId] = frozenset()
    """The scans of snapshot jobs, including created ones."""
    relations: tuple[RelationMeasure, ...] = ()
    waits: tuple[WaitMeasure, ...] = ()
    held_up: tuple[HeldUpMeasure, ...] = ()
    connections: ConnectionsMeasure | None = None
    """None while the state store's server does not answer."""


def gauges_of(measures: Measures) -> Iterator[Metric]:
    """Yield the metric families of one scrape."""
    for name, text, value in (
        ("in_flight_barrier_nums", "Barriers injected and not yet collected.", measures.in_flight_barriers),
        ("all_barrier_nums", "Barriers injected and not yet committed.", measures.uncommitted_barriers),
        ("last_committed_barrier_time", "Unix time of the committed epoch.", measures.committed_at),
        ("meta_barrier_interval_by_database", "Barrier interval in milliseconds.", measures.barrier_interval_ms),
    ):
        family = GaugeMetricFamily(name, text, labels=DATABASE_LABELS)
        family.add_metric((str(DATABASE_GRAPH),), value)
        yield family
    yield _gauge("tidefill_queue_length", "Jobs that wait for a permit.", measures.queue_length)
    yield _gauge("tidefill_graph_running", "1 while the database graph runs, 0 while it recovers.", measures.running)
    yield _gauge("tidefill_paused", "1 while every backfill is paused.", measures.paused)
    yield _gauge(
        "tidefill_published_age_seconds",
        "Age of the newest published epoch; 0 before the first.",
        measures.published_age_seconds,
    )
    recoveries = CounterMetricFamily("tidefill_recoveries", "Recoveries of the database graph.")
    recoveries.add_metric((), measures.recoveries)
    yield recoveries
    if measures.connections is not None:
        yield _gauge(
            "tidefill_store_connections", "Connections to the state store's server.", measures.connections.connections
        )
        yield _gauge(
            "tidefill_store_connections_max",
            "The most connections that the state store's server accepts.",
            measures.connections.connections_max,
        )
    yield from _of_workers(measures)
    yield from _of_jobs(measures)
    yield from _of_scans(measures)
    yield from _of_snapshots(measures.snapshots)
    yield from _of_sources(measures.sources)


def _of_workers(measures: Measures) -> Iterator[Metric]:
    yield _gauge("tidefill_workers_alive", "Workers whose lease runs.", measures.workers_alive)
    held_up = GaugeMetricFamily(
        "tidefill_worker_held_up_seconds",
        "For how long a worker's pod does not start, by the graph that it is to serve and the cause.",
        labels=("graph", "cause"),
    )
    for one in measures.held_up:
        held_up.add_metric((str(one.graph), one.cause), one.seconds)
    yield held_up


def _of_jobs(measures: Measures) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("tidefill_jobs", "Jobs that hold a name, by state.", labels=("state",))
    for state, count in measures.jobs.items():
        jobs.add_metric((state,), count)
    yield jobs
    broken = GaugeMetricFamily(
        "tidefill_job_broken",
        "1 for every job whose relation is not kept current: broken, failed or stale.",
        labels=("job_id", "name", "state"),
    )
    for labels in measures.broken:
        broken.add_metric(labels, 1)
    yield broken
    waits = GaugeMetricFamily(
        "tidefill_job_waiting_seconds",
        "For how long a job waits, by its reason; 0 where the beginning is not recorded.",
        labels=("job_id", "name", "reason"),
    )
    for wait in measures.waits:
        waits.add_metric((str(wait.job), wait.name, wait.reason), wait.seconds or 0.0)
    yield waits
    tables = GaugeMetricFamily("table_info", "1 for every relation.", labels=_TABLE_LABELS)
    for one in measures.relations:
        tables.add_metric((str(one.relation), str(one.relation), "", one.name, one.kind, ""), 1)
    yield tables


def _of_scans(measures: Measures) -> Iterator[Metric]:
    fragments = GaugeMetricFamily(
        "backfill_fragment_progress", "1 for every scan of an unfinished job.", labels=_FRAGMENT_LABELS
    )
    for fragment in measures.fragments:
        fragments.add_metric(fragment.labels, 1)
    yield fragments
    # Rows per second and actor. The name says bytes only because it is RisingWave's.
    limits = GaugeMetricFamily(
        "backfill_rate_limit_bytes",
        "Present rate limit of a scan, adapted ones too.",
        labels=("table_id", "fragment_id"),
    )
    tables = {**measures.upstream_of, **measures.follower_of}
    for fragment, limit in measures.limits.items():
        if fragment in tables:
            limits.add_metric((str(tables[fragment]), str(fragment)), limit)
    yield limits


def _of_snapshots(snapshots: Iterable[SnapshotMeasure]) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        "meta_snapshot_backfill_upstream_lag",
        "Epochs by which a snapshot job is behind what is committed; / 2^16 / 1000 they are seconds.",
        labels=("table_id",),
    )
    in_flight = GaugeMetricFamily(
        "meta_snapshot_backfill_inflight_barrier_num",
        "Barriers of a snapshot job's own graph that are not committed.",
        labels=("table_id",),
    )
    for one in snapshots:
        lag.add_metric((str(one.relation),), one.lag)
        in_flight.add_metric((str(one.relation),), one.in_flight)
    yield from (lag, in_flight)


def _of_sources(sources: Iterable[SourceMeasure]) -> Iterator[Metric]:
    lag = GaugeMetricFamily("tidefill_cdc_lag_bytes", "Log of a source that is not decoded.", labels=("source",))
    retained = GaugeMetricFamily(
        "tidefill_cdc_retained_bytes", "Log that a source's slot makes its server keep.", labels=("source",)
    )
    age = GaugeMetricFamily(
        "tidefill_cdc_commit_lag_seconds", "Age of a source's last commit when it was decoded.", labels=("source",)
    )
    for source in sources:
        if source.lag_bytes is not None:
            lag.add_metric((source.name,), source.lag_bytes)
        if source.retained_bytes is not None:
            retained.add_metric((source.name,), source.retained_bytes)
        if source.commit_lag_ms is not None:
            age.add_metric((source.name,), source.commit_lag_ms / 1000)
    yield from (lag, retained, age)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
