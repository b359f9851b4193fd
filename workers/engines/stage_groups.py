"""Add the sums of rows to the groups of an aggregate: those of a page of history, or of what has come and is gone.

A store with an engine of its own takes the sums: it has a log of partial groups while history is read, and adds to its
groups afterwards. Of any other format, the groups that have sums are read, and written again with them.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import chain

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name

from service.protocol.ids import Epoch
from service.protocol.stage import Aggregate
from workers.backfill.stages import BoundStage
from workers.engines.port import ActorOutcome, StageTask
from workers.engines.stage_lookups import Whole
from workers.engines.stage_rows import outcomes_of, over, packing, sums_of, with_written, write_changes
from workers.engines.whole import blocks_of
from workers.queries.stage_spark import StageSelect
from workers.spark.frames import Reports, rows_of, send_task
from workers.state_store.port import CLOSE, LIVE, VersionedStore, Written, has_store_engine
from workers.state_store.wire import ticked

_OLD = "old_"


def add_history(
    store: VersionedStore, bound: BoundStage, rows: DataFrame, task: StageTask, reports: Reports
) -> list[ActorOutcome]:
    """Add the rows of a page, and return the outcomes of its readers. Raises RepeatedTaskError if one ran twice."""
    if has_store_engine(store):
        sums = _arriving(bound, rows, task)
        with store.staging(bound, task.curr) as session:
            session.add_sums(sums_of(sums))
            outcomes = outcomes_of(reports, len(task.actors))
            session.end(task.at, whole=False)
        return outcomes
    written = _regroup(store, bound, rows, task)
    return with_written(outcomes_of(reports, len(task.actors)), written)


def add_changes(
    store: VersionedStore, bound: BoundStage, sides: Mapping[int, DataFrame], task: StageTask, *, few: bool
) -> Written:
    """Add what has come (`LIVE`), less what is gone (`CLOSE`), to the groups."""
    rows = _differences(bound, sides)
    if few:
        rows = rows.coalesce(1)
    if has_store_engine(store):
        sums = _arriving(bound, rows, task)
        with store.staging(bound, task.curr, allowed_seconds=task.allowed_seconds) as session:
            session.add_sums(sums_of(sums))
            return session.add_to_groups()
    return _regroup(store, bound, rows, task)


def _differences(bound: BoundStage, sides: Mapping[int, DataFrame]) -> DataFrame:
    aggregate = _aggregate(bound)
    keys, measures = list(map(ticked, aggregate.keys)), list(map(ticked, aggregate.measures))
    # Spark's `-x` rounds a decimal to 34 digits.
    signed = {CLOSE: [f"0 - {one} as {one}" for one in measures], LIVE: measures}
    return reduce(DataFrame.unionAll, [rows.selectExpr(*keys, *signed[side]) for side, rows in sides.items()])


def _arriving(bound: BoundStage, rows: DataFrame, task: StageTask) -> Iterator[Row]:
    """Return the sums when the first of them is there: the transaction that takes them is short."""
    send_task(rows, task)
    sums = rows_of(packing(over(rows, StageSelect(bound).sums_written)))
    first = next(sums, None)
    return iter(()) if first is None else chain([first], sums)


def _regroup(store: VersionedStore, bound: BoundStage, rows: DataFrame, task: StageTask) -> Written:
    """Write the groups to which rows are added, as they were and as they are."""
    aggregate, select = _aggregate(bound), StageSelect(bound)
    send_task(rows, task)
    # Two parts of a plan use each of them. They would read its pages twice.
    totals = over(rows, select.totals).localCheckpoint()
    blocks = blocks_of(bound.target.vnode_count, rows.sparkSession.sparkContext.defaultParallelism)
    held = Whole(store, bound.target, Epoch(task.curr - 1), blocks).frame(rows.sparkSession)
    same = " and ".join(f"{ticked(key)} <=> {ticked(_OLD + key)}" for key in aggregate.keys)
    named = held.select(*(F.col(ticked(one.name)).alias(_OLD + one.name) for one in bound.target.columns))
    old = named.join(F.broadcast(totals), F.expr(same), "leftsemi").localCheckpoint()
    after = [
        f"coalesce(cast({ticked(_OLD + one)} as {kind}), 0) + {ticked(one)} as {ticked(one)}"
        for one in aggregate.measures
        for kind in [totals.schema[one].dataType.simpleString()]
    ]
    added = totals.join(old, F.expr(same), "left").selectExpr(*map(ticked, aggregate.keys), *after)
    gone = old.selectExpr(*(f"{ticked(_OLD + one.name)} as {ticked(one.name)}" for one in bound.target.columns))
    return write_changes({CLOSE: gone, LIVE: over(added, select.results)}, store, bound, task, few=True)


def _aggregate(bound: BoundStage) -> Aggregate:
    assert bound.stage.aggregate is not None
    return bound.stage.aggregate
