"""The metrics page, with a registry of its own. Names are RisingWave's where it has the same metric.

There are two kinds of metrics. *Counted* ones grow while this process, as the leader, commits and publishes epochs.
Like every Prometheus counter they start at zero with the process. `Metrics.committed` and `Metrics.published` count
them. *Measured* ones are passed in at scrape time by `service.operations.status.gauges`. It reads them from the meta
store, so they are right in every service process.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric, UntypedMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from service.protocol.ids import DATABASE_GRAPH, ActorId, FragmentId, RelationId
from service.protocol.report import ActorReport
from service.protocol.stage import Engine
from service.telemetry.measures import DATABASE_LABELS, Measures, gauges_of
from service.telemetry.stalls import Stalls

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_LATENCY_BUCKETS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds. Dense around the interval and the two goals, p50 under 1 s and p99 under 2 s."""
_TRANSACTION_BUCKETS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds. Dense below the goal: all of a barrier's transactions together take less than 0.2 s."""
Stage = Literal["inject", "collect", "commit", "publish"]
Consuming = Literal["consuming_snapshot", "consuming_log_store"]
"""The work of a barrier of a partial graph."""

_Rows = dict[tuple[FragmentId, ActorId], int]


class Metrics:
    """The counted metrics of one process, and the page that shows them with the measured ones."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._barriers = 0
        self._latency = Histogram(
            "meta_barrier_duration_seconds",
            "Barrier latency: injected to published.",
            labelnames=DATABASE_LABELS,
            buckets=_LATENCY_BUCKETS,
            registry=self._registry,
        ).labels(DATABASE_GRAPH)
        self._recovery = Histogram(
            "recovery_latency",
            "Recoveries of the database graph, from the end of a generation to the first ordinary barrier of the next.",
            labelnames=DATABASE_LABELS,
            buckets=_LATENCY_BUCKETS,
            registry=self._registry,
        ).labels(DATABASE_GRAPH)
        self._of_snapshots = Histogram(
            "meta_snapshot_backfill_barrier_duration_seconds",
            "Barriers of a snapshot job's own graph: injected to committed.",
            labelnames=("table_id", "barrier_type"),
            buckets=_LATENCY_BUCKETS,
            registry=self._registry,
        )
        self._snapshots: set[RelationId] = set()
        """The relations of the snapshot jobs that have a histogram."""
        self._transactions = Histogram(
            "tidefill_meta_store_seconds",
            "Meta store transactions of a barrier, from begin to committed.",
            labelnames=("stage",),
            buckets=_TRANSACTION_BUCKETS,
            registry=self._registry,
        )
        self.stalls = Stalls(self._registry)
        self.leader = Gauge("tidefill_leader", "1 while this service leads, otherwise 0.", registry=self._registry)
        self.spans_dropped = Counter("tidefill_spans_dropped", "Spans that no collector took.", registry=self._registry)
        self.deadlocks = _deadlocks(self._registry)
        self._refused: dict[str, int] = {}
        self._snapshot_rows, self._upstream_rows, self._replayed_rows = _Rows(), _Rows(), _Rows()
        """The part of `_upstream_rows` that a snapshot job read from the change log in a partial graph."""

    @cached_property
    def _work(self) -> dict[Engine, list[int]]:
        """The jobs and rows of each engine."""
        return {one: [0, 0] for one in Engine}

    def committed(self, reports: Iterable[ActorReport], *, barriers: int, replaying: bool = False) -> None:
        """Count the actors' reports for `barriers` barriers that were committed together.

        `replaying` means that the graph is partial. Its live changes are then those of the change log.
        """
        self._barriers += barriers
        for report in reports:
            actor = (report.fragment, report.actor)
            if report.engine is not None:
                work = self._work[report.engine]
                work[0] += report.jobs
                work[1] += report.snapshot_rows + report.upstream_rows
            if report.snapshot_rows:
                self._snapshot_rows[actor] = self._snapshot_rows.get(actor, 0) + report.snapshot_rows
            if report.upstream_rows:
                self._upstream_rows[actor] = self._upstream_rows.get(actor, 0) + report.upstream_rows
            if report.upstream_rows and replaying:
                self._replayed_rows[actor] = self._replayed_rows.get(actor, 0) + report.upstream_rows

    def published(self, *, seconds: float) -> None:
        """Count a barrier that was published `seconds` after it was injected."""
        self._latency.observe(seconds)

    def recovered(self, *, seconds: float) -> None:
        """Count a recovery of the database graph."""
        self._recovery.observe(seconds)

    def consumed(self, relation: RelationId, consuming: Consuming, *, seconds: float) -> None:
        """Count a barrier in the partial graph of the snapshot job that creates `relation`."""
        self._snapshots.add(relation)
        self._of_snapshots.labels(relation, consuming).observe(seconds)

    def transacted(self, stage: Stage, seconds: float) -> None:
        """Count the duration of a barrier's meta-store transaction, including the computation inside it."""
        self._transactions.labels(stage).observe(seconds)

    def refused(self, quota: str) -> None:
        """Count a request that was refused because of the quota with this parameter."""
        self._refused[quota] = self._refused.get(quota, 0) + 1

    def page(self, measures: Measures) -> bytes:
        """Return the page in Prometheus's text format."""
        self._forget({**measures.upstream_of, **measures.follower_of}, {one.relation for one in measures.snapshots})
        scrape = CollectorRegistry()
        scrape.register(_Families([*gauges_of(measures), *self._counts(measures)]))
        return generate_latest(self._registry) + generate_latest(scrape)

    def _forget(self, known: Mapping[FragmentId, int], creating: Collection[RelationId]) -> None:
        """Remove the counts of fragments and relations that no longer exist, so that memory is bounded (I8)."""
        for counts in (self._snapshot_rows, self._upstream_rows, self._replayed_rows):
            for actor in [actor for actor in counts if actor[0] not in known]:
                del counts[actor]
        for relation in self._snapshots.difference(creating):
            self._of_snapshots.remove_by_labels({"table_id": str(relation)})
        self._snapshots.intersection_update(creating)

    def _counts(self, measures: Measures) -> Iterator[Metric]:
        barriers = CounterMetricFamily("tidefill_barriers_committed", "Barriers committed.", labels=DATABASE_LABELS)
        barriers.add_metric((str(DATABASE_GRAPH),), self._barriers)
        yield barriers
        refused = CounterMetricFamily(
            "tidefill_quota_refusals", "Requests refused because of a quota of the caller's role.", labels=("quota",)
        )
        for quota, count in self._refused.items():
            refused.add_metric((quota,), count)
        yield refused
        for place, (what, text) in enumerate(
            (("jobs", "Jobs of Spark, or runs of the store."), ("rows", "Rows read."))
        ):
            done = CounterMetricFamily(f"tidefill_engine_{what}", f"{text} By engine.", labels=("engine",))
            for engine, work in self._work.items():
                done.add_metric((engine,), work[place])
            yield done
        # Untyped, because the client library adds `_total` to a counter's name, and these names are RisingWave's.
        for name, text, counts in (
            ("stream_backfill_snapshot_read_row_count", "Rows read from upstream history.", self._snapshot_rows),
            ("stream_backfill_upstream_output_row_count", "Live changes forwarded.", self._upstream_rows),
        ):
            family = UntypedMetricFamily(name, text, labels=("table_id", "actor_id"))
            followed = UntypedMetricFamily(
                name.replace("stream_backfill", "stream_cdc_backfill"),
                f"{text} Of external tables.",
                labels=("table_id", "actor_id"),
            )
            for (fragment, actor), rows in counts.items():
                if fragment in measures.follower_of:
                    followed.add_metric((str(measures.follower_of[fragment]), str(actor)), rows)
                else:
                    family.add_metric((str(measures.upstream_of[fragment]), str(actor)), rows)
            yield from (family, followed)
        yield self._stages(measures)

    def _stages(self, measures: Measures) -> Metric:
        staged = UntypedMetricFamily(
            "stream_snapshot_backfill_consume_snapshot_row_count",
            "Rows that snapshot jobs consumed, by stage.",
            labels=("table_id", "actor_id", "stage"),
        )
        for actor in sorted({*self._snapshot_rows, *self._upstream_rows}):
            if actor[0] not in measures.snapshot_scans or actor[0] not in measures.upstream_of:
                continue
            replayed = self._replayed_rows.get(actor, 0)
            for stage, rows in (
                ("consuming_snapshot", self._snapshot_rows.get(actor, 0)),
                ("consuming_log_store", replayed),
                ("consume_upstream", self._upstream_rows.get(actor, 0) - replayed),
            ):
                staged.add_metric((str(measures.upstream_of[actor[0]]), str(actor[1]), stage), rows)
        return staged


def _deadlocks(registry: CollectorRegistry) -> Counter:
    return Counter(
        "tidefill_meta_store_deadlocks",
        "Transactions that Postgres rolled back because of a deadlock, and that ran again.",
        registry=registry,
    )


class _Families:
    """A collector of metric families that were made beforehand."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families
