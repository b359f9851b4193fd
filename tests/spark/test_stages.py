"""The history of a stage in Spark, or its changes, with the other half in the store: the target holds what its query
answers after every epoch (I1).

Small pages make many epochs. The other inputs are sent to all tasks, or exchanged between them; for changes, the
changed rows are sent to them.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from service.protocol.ids import Epoch, RelationId
from service.protocol.stage_spark import spark_reason
from service.protocol.table_format import Capabilities
from tests.support.sampling import in_turn, sampled
from tests.support.spark import reader_of
from tests.support.stage_cases import CASES, TABLES, Case
from tests.support.stage_world import Made, run, stage_store, world_of
from tests.support.state_store import Store
from tests.support.trees import with_spark
from workers.backfill.stages import BoundStage, Windows
from workers.engines import stage_changes
from workers.engines import stage_spark as engine
from workers.engines.port import ActorOutcome, StageTask
from workers.engines.stage_changes import SparkStageChanges
from workers.engines.stage_inputs import InputStates, StageInputs
from workers.engines.stage_lookups import Lookups
from workers.engines.stage_parts import SparkPartEngine, changed_parts
from workers.engines.stage_rule import StageRule
from workers.queries.stage_spark import StageSelect
from workers.spark.frames import RepeatedTaskError, Reports
from workers.state_store.port import LIVE, VNODE
from workers.state_store.postgres import PostgresStore
from workers.state_store.stage_writer import StageWriter

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

RELATIONS = {table.id: table for table in TABLES.values()}
PLANNED = [replace(case, stage=with_spark(case.stage, RELATIONS, case.target)) for case in CASES]
SENT, EXCHANGED = 64 << 20, 0
LEFT = next(one for one in PLANNED if one.name == "a left join of many, with a condition on what is padded")


def said(one: Case | int) -> str:
    """Return the name of a case, or of the way that its inputs take."""
    return one.name if isinstance(one, Case) else "sent" if one else "exchanged"


def made(spark: SparkSession, broadcast_bytes: int = SENT) -> Made:
    return lambda store, bound: reader_of(spark, store, bound, broadcast_bytes)


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with stage_store(database_url) as prepared:
        yield prepared


@pytest.mark.parametrize(("case", "broadcast_bytes"), in_turn(PLANNED, [SENT, EXCHANGED]), ids=said)
async def test_i1_a_history_in_spark_is_what_the_query_answers(
    store: Store, spark: SparkSession, case: Case, broadcast_bytes: int
) -> None:
    assert spark_reason(case.stage) is None
    assert await run(store, case, 1 if broadcast_bytes else 2, made(spark, broadcast_bytes), epochs=2) is None


@dataclass
class Patient(SparkStageChanges):
    """Has time to read all inputs in the first epoch. Otherwise the store follows the first few."""

    def run(self, task: StageTask) -> list[ActorOutcome] | None:
        return super().run(task.model_copy(update={"slice_seconds": 60.0}))


def follows(spark: SparkSession, broadcast_bytes: int) -> Made:
    made = Patient if broadcast_bytes else SparkStageChanges
    return lambda store, bound: made(spark, store, bound, broadcast_bytes)


@pytest.mark.parametrize(("case", "broadcast_bytes"), in_turn(PLANNED, [EXCHANGED, SENT], share=5), ids=said)
async def test_i1_changes_in_spark_give_what_the_query_answers(
    store: Store, spark: SparkSession, case: Case, broadcast_bytes: int
) -> None:
    assert spark_reason(case.stage) is None
    assert (
        await run(store, case, 1 if broadcast_bytes else 2, follows=follows(spark, broadcast_bytes), epochs=6) is None
    )


async def test_i1_only_what_is_joined_to_the_core_changes(store: Store, spark: SparkSession) -> None:
    """Its other rows are needed from the first epoch on."""
    world = await world_of(store, LEFT, 1, None, follows(spark, SENT))
    for _ in range(3):
        await world.change(rows=8)
    world.read_history()
    for _ in range(2):
        await world.change(rows=8, tables=["b"])
        world.follow()
        assert await world.differs() == (Counter(), Counter())


class OnlyRows(PostgresStore):
    """A format that stores rows and computes nothing: Spark changes the groups of an aggregate, too."""

    capabilities = Capabilities(index_bounds=True)


@pytest.mark.parametrize(
    "case", sampled([one for one in PLANNED if one.stage.aggregate is not None], share=5), ids=said
)
async def test_i1_groups_without_an_engine_of_the_store(store: Store, spark: SparkSession, case: Case) -> None:
    both = made(spark), follows(spark, SENT)
    assert await run(store, case, 1, *both, epochs=4, form=OnlyRows) is None


async def fails(store: Store, spark: SparkSession, case: Case) -> bool:
    """Whether a planted bug of the history is seen."""
    return await wrong(run(store, case, 1, made(spark, EXCHANGED)))


async def wrong(schedule: Awaitable[str | None]) -> bool:
    """Whether a schedule ends with wrong rows, or with an error."""
    try:
        return await schedule is not None
    except (PySparkException, RepeatedTaskError, AssertionError):
        return True


def none_touched(_: StageRule) -> Iterator[DataFrame]:
    """Rows of the core that are the same, and meet a change beside, are left as they are."""
    return iter(())


def whole_state(states: InputStates) -> DataFrame:
    """Old versions count as the same, so that a combination of two of them goes twice."""
    assert states.unchanged is not None
    return states.unchanged if states.old is None else states.unchanged.unionAll(states.old)


def not_recorded(inputs: StageInputs, _: Mapping[RelationId, pa.Table], windows: Windows) -> None:
    """What was read once is taken for what is there now."""
    for one, held in inputs.held.items():
        held.loaded.at = windows[one].upto


def only_new(session: SparkSession, bound: BoundStage, states: InputStates, side: int) -> DataFrame:
    """Parts from which a row has gone are not computed again."""
    return CHANGED(session, bound, replace(states, old=None) if side == LIVE else states, side)


CHANGED = changed_parts
BROKEN_RULES: Sequence[tuple[Any, str, Any, int]] = (
    (StageRule, "_touched", none_touched, 3),
    (InputStates, "same", property(whole_state), 1),
    (StageInputs, "record", not_recorded, 1),
    (stage_changes, "changed_parts", only_new, 9),
)


@pytest.mark.parametrize(("place", "name", "broken", "case"), sampled(BROKEN_RULES))
async def test_a_broken_rule_of_changes_is_found(
    store: Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, broken: Any, case: int
) -> None:
    monkeypatch.setattr(place, name, broken)
    assert await wrong(run(store, PLANNED[case], 1, follows=follows(spark, SENT)))


def every_row(engine: SparkPartEngine) -> DataFrame:
    """A part is computed with each of its rows, and not with its first one only."""
    rows = engine._rows  # pyright: ignore[reportPrivateUsage] - a bug is planted
    assert rows is not None
    return rows.selectExpr("i0__x as part_0", VNODE, "i0__id as id")


async def test_a_part_that_is_computed_twice_is_found(
    store: Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small_pages(store: PostgresStore, bound: BoundStage) -> SparkPartEngine:
        return SparkPartEngine(spark, store, bound, rows_first=2, page_seconds=0.0)

    monkeypatch.setattr(SparkPartEngine, "_first_rows", every_row)
    world = await world_of(store, PLANNED[9], 1, small_pages)
    for _ in range(6):
        await world.change(rows=14)
    world.windowed = world.epoch
    while not world.complete:
        world.run(permits=None)
    assert await world.differs() != (Counter(), Counter())


def at_another_epoch(ready: Callable[..., bool]) -> Callable[..., bool]:
    """The other inputs are read at an epoch before the last changes."""

    def read(self: Lookups, at: Mapping[RelationId, Epoch], *, slice_seconds: float) -> bool:
        return ready(self, {one: Epoch(epoch - 1) for one, epoch in at.items()}, slice_seconds=slice_seconds)

    return read


def no_exchange(_: DataFrame) -> str:
    return ""


SUMMED = StageSelect.summed


def doubled(select: StageSelect, rows: str) -> str:
    """Every page counts twice, as if its task had run again."""
    return SUMMED(select, rows).replace("sum(", "2 * sum(")


async def test_lookups_of_another_epoch_are_found(
    store: Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lookups, "ready", at_another_epoch(Lookups.ready))
    assert await fails(store, spark, PLANNED[1])


def nothing(_: Reports) -> list[str]:
    return []


async def test_lost_reports_are_found(store: Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reports, "take", nothing)
    assert await fails(store, spark, PLANNED[0])


async def test_a_kept_exchange_is_found(store: Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark answers a second run of the same frame from what was exchanged in the first one."""
    monkeypatch.setattr(engine, "physical_plan", no_exchange)
    assert await fails(store, spark, PLANNED[0])


async def test_wrong_sums_are_found(store: Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StageSelect, "summed", doubled)
    assert await fails(store, spark, PLANNED[6])


def losing(staging: Callable[..., Any], spark: SparkSession) -> Callable[..., Any]:
    """Before the sums of the second partition are asked for, all exchanged rows get lost, as with their executor."""

    @contextmanager
    def lose(store: PostgresStore, bound: BoundStage, epoch: Epoch, **how: Any) -> Generator[StageWriter]:
        with staging(store, bound, epoch, **how) as session:
            java: Any = spark
            tracker = java._jvm.org.apache.spark.SparkEnv.get().mapOutputTracker()
            for shuffle in range(java.sparkContext._jsc.sc().newShuffleId()):
                if tracker.containsShuffle(shuffle):
                    tracker.unregisterAllMapAndMergeOutput(shuffle)
            yield session

    return lose


async def test_i3_sums_are_not_added_if_readers_ran_again(
    store: Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs readers again whose exchanged rows were lost. They may stop at other pages then."""
    monkeypatch.setattr(PostgresStore, "staging", losing(PostgresStore.staging, spark))
    world = await world_of(store, PLANNED[6], 1, made(spark, EXCHANGED))
    for _ in range(3):
        await world.change(rows=8)
    world.windowed = world.epoch
    with pytest.raises(RepeatedTaskError):
        world.run(permits=None)
    assert not await store.rows("select 1 from state.t_9")
