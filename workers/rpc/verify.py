"""Compare a view with its query over its upstreams, both at one epoch, by an order-independent digest per vnode.

A row's hash is `xxhash64` over its stored columns, and over a flag for each column whether it is NULL, because xxhash64
itself skips NULLs. A vnode's digest is its number of rows and the sum of their hashes as a decimal, which neither
depends on order nor overflows. Only vnodes whose digests differ are compared key by key. Tables are read with the pages
and the query of the backfill, at the pinned epoch.
"""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name

from service.protocol.ids import Generation, Vnode
from service.protocol.relation import Relation
from service.protocol.request import Verified, Verify, VnodeDifference
from service.protocol.vnodes import Runs, runs_of
from workers.connectors.in_place import TableAt
from workers.connectors.kinds import SINKS
from workers.connectors.port import GONE
from workers.engines.stage_lookups import Whole
from workers.engines.whole import blocks_of
from workers.rpc.select import text_of
from workers.rpc.verify_stages import by_value, compared, exchanging, staged
from workers.spark.frames import spark_schema
from workers.state_store.port import VNODE, VersionedStore
from workers.state_store.wire import ticked

_TASKS_BY_SLOT = 4
"""Of an exchange. More of them cost a small view more than its rows do."""

Digests = dict[int, tuple[int, int]]
"""vnode -> (rows, sum of the rows' hashes)."""


def verify(spark: SparkSession, store: VersionedStore, request: Verify, *, parallelism: int) -> Verified:
    """Compare the two sides. Raises Spark's errors."""
    request = request.model_copy(update={"relation": compared(request.relation)})
    session = exchanging(spark, parallelism * _TASKS_BY_SLOT)
    whole = blocks_of(request.relation.vnode_count, parallelism)
    expected, found = (_digests(frame, request.relation) for frame in _both(session, store, request, blocks=whole))
    differing = [vnode for vnode in sorted(expected.keys() | found.keys()) if expected.get(vnode) != found.get(vnode)]
    differences: tuple[VnodeDifference, ...] = ()
    if differing:
        narrowed = tuple(block for block in (_within(block, differing) for block in whole) if block)
        if request.relation.lake is not None:
            narrowed = whole
        differences = _differences(*_both(session, store, request, blocks=narrowed), request, differing)
    return Verified(
        id=request.id,
        epoch=request.epoch,
        equal=not differing,
        rows=sum(rows for rows, _ in found.values()),
        expected_rows=sum(rows for rows, _ in expected.values()),
        digest=_total(found),
        expected_digest=_total(expected),
        differences=differences,
    )


def _both(
    session: SparkSession, store: VersionedStore, request: Verify, *, blocks: tuple[Runs, ...]
) -> tuple[DataFrame, DataFrame]:
    """Return the rows that the view should hold, and the rows that it holds."""
    wanted = staged(session, store, request, blocks=blocks, tasks=session.sparkContext.defaultParallelism)
    if request.relation.lake is None:
        return wanted, Whole(store, request.relation, request.relation_epoch, blocks).frame(session)
    # Rows of a lake have no vnode that stays.
    return wanted.withColumn(VNODE, F.lit(0)), _with_pending(session, request, blocks).withColumn(VNODE, F.lit(0))


def _with_pending(session: SparkSession, request: Verify, blocks: tuple[Runs, ...]) -> DataFrame:
    """Return the rows that a view in a lake will have when what is prepared is delivered. Raises MovedError.

    The state store learns of a version when the epoch that delivered it is committed, so the target is asked for it.
    """
    relation = request.relation
    assert relation.lake is not None
    sink = SINKS[relation.lake.name](relation.lake.options, relation, Generation(0))
    version, changes = sink.pending(request.relation_epoch)
    held = Whole(TableAt(version), relation, request.relation_epoch, blocks).frame(session)
    if changes is None:
        return held
    frame = session.createDataFrame(changes, schema=spark_schema(changes.schema))
    same = " and ".join(f"h.{ticked(part.name)} <=> c.{ticked(part.name)}" for part in relation.key)
    kept = held.alias("h").join(F.broadcast(frame).alias("c"), F.expr(same), "leftanti")
    lives = frame.where(~F.col(GONE)).withColumn(VNODE, F.lit(0).cast("smallint"))
    return kept.unionAll(lives.select(*map(ticked, held.columns)))


def _digests(frame: DataFrame, relation: Relation) -> Digests:
    hashed = frame.select(VNODE, _hash(relation).cast("decimal(20,0)").alias("hash"))
    rows = hashed.groupBy(VNODE).agg(F.count("*"), F.sum("hash")).collect()
    return {int(row[0]): (int(row[1]), int(row[2])) for row in rows}


def _hash(relation: Relation) -> Any:
    columns = [
        by_value(column.name) if column.type.unbounded and not column.type.array else F.col(ticked(column.name))
        for column in relation.columns
    ]
    return F.xxhash64(*columns, *(column.isNull() for column in columns))


def _differences(
    expected: DataFrame, found: DataFrame, request: Verify, differing: Sequence[int]
) -> tuple[VnodeDifference, ...]:
    """Return keys that are missing, extra or unequal; at most `differing_keys_max` in all."""
    relation = request.relation
    texts = [
        text_of(part.name, relation.column(part.name).type).alias(f"_k{at}") for at, part in enumerate(relation.key)
    ]
    keys = [f"_k{at}" for at in range(len(texts))]
    sides = [
        frame.select(VNODE, *texts, _hash(relation).alias(hashed))
        for frame, hashed in ((expected, "wanted"), (found, "held"))
    ]
    left, right = sides[0].alias("l"), sides[1].alias("r")
    same = F.lit(True)
    for name in (VNODE, *keys):
        same = same & F.col(f"l.{name}").eqNullSafe(F.col(f"r.{name}"))
    joined = left.join(right, on=same, how="full_outer")
    unequal = joined.where(~F.col("wanted").eqNullSafe(F.col("held"))).select(
        *(F.coalesce(f"l.{name}", f"r.{name}") for name in (VNODE, *keys)), "wanted", "held"
    )
    rows = unequal.limit(request.differing_keys_max).collect()
    return tuple(_difference(vnode, [row for row in rows if row[0] == vnode]) for vnode in differing)


def _difference(vnode: int, rows: Sequence[Any]) -> VnodeDifference:
    named = [(tuple(row[1:-2]), row[-2], row[-1]) for row in rows]
    return VnodeDifference(
        vnode=Vnode(vnode),
        missing=tuple(key for key, _, held in named if held is None),
        extra=tuple(key for key, wanted, _ in named if wanted is None),
        unequal=tuple(key for key, wanted, held in named if wanted is not None and held is not None),
    )


def _total(digests: Digests) -> str:
    """Return one digest over all vnodes, in hex. Sums do not depend on order."""
    return f"{sum(hashed for _, hashed in digests.values()) % (1 << 128):032x}"


def _within(runs: Runs, vnodes: Sequence[int]) -> Runs:
    return runs_of(vnode for vnode in vnodes if any(first <= vnode <= last for first, last in runs))
