"""Compute a view in Spark, from its tables at one epoch, to compare it with what is maintained.

It is computed whole, but for a view of projections that is being created: of that, what was read so far. Nothing that
the job itself has written is read. The stages that only the state store can compute have no such answer
(`service.protocol.stage_spark.verify_reason`), so a view with one of them is compared by the store.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name

from service.protocol.ids import RelationId
from service.protocol.plan import VnodePosition
from service.protocol.relation import Relation
from service.protocol.request import Select, Verify, VerifyStage
from service.protocol.vnodes import Runs, vnodes_of
from workers.backfill.positions import Positions
from workers.backfill.stages import BoundStage
from workers.engines.rows import PositionColumns, actor_indexes, input_schema, row_batch
from workers.engines.stage_joins import StageJoins
from workers.engines.stage_lookups import Whole
from workers.engines.stage_parts import placed
from workers.engines.stage_rows import over
from workers.engines.whole import blocks_of, whole_rows
from workers.queries.projection import projection_plan
from workers.queries.stage_spark import StageSelect, named_columns, used_columns
from workers.spark.frames import spark_schema
from workers.state_store.port import LIVE, VNODE, VersionedStore
from workers.state_store.wire import ticked


def exchanging(spark: SparkSession, partitions: int) -> SparkSession:
    """Return a session whose exchanges have so many partitions. Each spills to disk what its task cannot hold."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    # Spark takes what a task of Python returns for as small as what it was given: a number.
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    return session


def staged(
    session: SparkSession, store: VersionedStore, request: Verify | Select, *, blocks: tuple[Runs, ...], tasks: int
) -> DataFrame:
    """Return the rows that the view should hold, those of the vnodes of `blocks` alone.

    So many `tasks` read each relation.
    """
    made: dict[RelationId, DataFrame] = {}
    for one in request.stages:
        frame = _Evaluation(session, store, request, one, made, tasks).frame()
        made[one.target.id] = made[one.target.id].unionAll(frame) if one.target.id in made else frame
    columns = [ticked(VNODE), *(ticked(column.name) for column in request.relation.columns)]
    wanted = [vnode for runs in blocks for vnode in vnodes_of(runs)]
    rows = made[request.relation.id].select(*columns)
    return rows if len(wanted) == request.relation.vnode_count else rows.where(F.col(VNODE).isin(wanted))


def compared(relation: Relation) -> Relation:
    """Return a view with the columns that are compared: those that users see, and its key."""
    return relation.model_copy(update={"columns": relation.identified})


def by_value(name: str) -> Any:
    """Return the text of a number without zeros at its end: a sum keeps the digits of rows that have gone."""
    text = ticked(name)
    return F.expr(
        f"case when {text} like '%.%' then trim(trailing '.' from trim(trailing '0' from {text})) else {text} end"
    )


class _Evaluation:
    """Evaluates one stage over tables and over the results of earlier stages."""

    def __init__(
        self,
        session: SparkSession,
        store: VersionedStore,
        request: Verify | Select,
        one: VerifyStage,
        made: "dict[RelationId, DataFrame]",
        tasks: int,
    ) -> None:
        self.session, self.store, self.request, self.made, self.tasks = session, store, request, made, tasks
        self.positions = one.positions
        self.bound = BoundStage(one.stage, one.target, {relation.id: relation for relation in one.relations})

    def frame(self) -> DataFrame:
        """Return the rows of the target: `_vnode`, and its columns in order."""
        driver = self.bound.stage.driver.alias
        if self.bound.stage.partition is not None:
            return self._parts(driver)
        if self.positions is not None:
            return self._prefix(self.positions)
        inputs: dict[str, DataFrame] = {}
        for one in self.bound.stage.inputs:
            relation, vnode = used_columns(self.bound, [one.alias]), [ticked(VNODE)] if one.alias == driver else []
            columns = [*vnode, *named_columns(one.alias, relation, typed=True)]
            inputs[one.alias] = self._whole(relation).selectExpr(*columns)
        rows, select = StageJoins(self.bound, ()).rows(inputs), StageSelect(self.bound)
        if self.bound.stage.aggregate is not None:
            rows = over(rows, lambda every: select.results(select.totals(every)))
        return rows.selectExpr(*select.placed())

    def _parts(self, alias: str) -> DataFrame:
        relation = used_columns(self.bound, [alias])
        rows = self._whole(relation).selectExpr(*named_columns(alias, relation, typed=True))
        return placed(self.session, self.bound, rows, None)

    def _prefix(self, known: Sequence[VnodePosition]) -> DataFrame:
        """Return what the driver's rows at and before some positions give. They are marked as changes are."""
        driver = used_columns(self.bound, [self.bound.stage.driver.alias])
        positions = Positions(((0, driver.vnode_count - 1),), {one.vnode: one for one in known})
        whole, schema = self._blocks(driver), input_schema(driver)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            beside = PositionColumns(positions, len(driver.key))
            for batch in batches:
                for block in actor_indexes(batch):
                    for rows in whole_rows(whole.store, driver, whole.blocks[block], at=whole.at):
                        yield row_batch(schema, LIVE, rows, beside.of(rows))

        count = len(whole.blocks)
        plan = projection_plan(self.bound, driver)
        rows = self.session.range(0, count, 1, count).mapInArrow(read, spark_schema(schema))
        projected = rows.selectExpr(*plan.typed).where(plan.kept).selectExpr(*plan.projected)
        return projected.selectExpr(plan.vnode, *(ticked(column.name) for column in self.bound.target.columns))

    def _whole(self, relation: Relation) -> DataFrame:
        if relation.id in self.made:
            return self.made[relation.id]
        return self._blocks(relation).frame(self.session)

    def _blocks(self, relation: Relation) -> Whole:
        blocks = blocks_of(relation.vnode_count, self.tasks)
        return Whole(self.store, relation, self.request.at(relation.id), blocks)
