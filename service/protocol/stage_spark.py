"""Decide whether Spark can compute a stage, and which engine does.

Spark reads every input except the driver as a whole, and for changes those in which it looks up rows. It joins rows
only by equalities: a join without one would compare every row with every other.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from service.protocol.relation import Relation
from service.protocol.stage import Condition, Engine, EngineChoice, Expression, Join, Stage

CLUSTER_SHARE: Final = 10
"""A worker with executors of its own prefers Spark from one of so many rows on."""
UNPLANNED: Final = "it was planned without Spark"
MEASURE_DIGITS_MAX: Final = 28
"""Spark's sum of a decimal has ten digits more, which 10,000,000,000 rows cannot exceed. A longer measure is summed in
two parts.
"""


def spark_column(alias: str, name: str) -> str:
    """Return the name of an input's column among the columns of all inputs in Spark."""
    return f"{alias}__{name}"


def engine_of(stage: Stage, no_store: str | None) -> tuple[Engine | None, str]:
    """Return the engine that reads a stage's history and follows changes, and why. None: it depends on the rows.

    `no_store` is why the store cannot compute it.
    """
    return chosen_engine(stage.engine, spark_reason(stage), no_store)


def lake_reason(used: Iterable[Relation]) -> str | None:
    """Return why the store cannot compute a stage that reads or writes these relations. None: none lies in a lake."""
    lakes = sorted({one.name for one in used if one.lake is not None})
    return f"{', '.join(lakes)} lies in a lake, which Spark reads and writes" if lakes else None


def chosen_engine(choice: EngineChoice, no_spark: str | None, no_store: str | None) -> tuple[Engine | None, str]:
    """Return the engine that computes, and why. None: it depends on the number of rows.

    `no_spark` and `no_store` are the reasons why an engine cannot. One of them can.
    """
    match choice:
        case EngineChoice.SPARK if no_spark is None:
            return Engine.SPARK, "stage_engine is spark"
        case EngineChoice.STORE if no_store is None:
            return Engine.STORE, "stage_engine is store"
        case _ if no_store is not None:
            return Engine.SPARK, no_store
        case _ if no_spark is not None:
            return Engine.STORE, no_spark
        case _:
            return None, "both can"


def spark_from(rows: int, *, cluster: bool) -> int:
    """Return from how many rows on Spark computes. With executors of its own the database is the scarce machine."""
    return rows // CLUSTER_SHARE if cluster else rows


def spark_reason(stage: Stage) -> str | None:
    """Return why Spark cannot compute a stage's history, or None if it can."""
    partition = stage.partition
    if partition is not None and partition.spark is None:
        return partition.refusal or UNPLANNED
    for join in stage.joins:
        known = set[str]() if join is stage.joins[0] else _before(stage, join)
        if len(list(in_order(join, known))) < len(join.inputs):
            return "a join without an equality: Spark would compare every row with every other"
    return _refusal((*stage.conditions, *stage.rows))


def verify_reason(stage: Stage) -> str | None:
    """Return why Spark cannot compute what a stage holds, or None if it can."""
    aggregate = stage.aggregate
    return spark_reason(stage) or (None if aggregate is None else _refusal((*aggregate.looks, *aggregate.results)))


def _refusal(expressions: Sequence[Expression]) -> str | None:
    for one in expressions:
        if one.spark is None:
            return f"{one.sql}: {one.refusal or UNPLANNED}"
    return None


def _before(stage: Stage, join: Join) -> set[str]:
    """Return the inputs that the conditions of a later group may name."""
    return {one.alias for earlier in stage.joins[: stage.joins.index(join)] for one in earlier.inputs}


def in_order(join: Join, known: Collection[str]) -> Iterator[tuple[str, Sequence[Condition]]]:
    """Yield the inputs of a group so that each is joined with those before it by an equality, with the conditions that
    can be decided then. The first one is joined with `known`, or with nothing if there are none. Beside an input of one
    row no equality is needed.

    It ends early if there is no such order. A group is joined with `known` as a whole: inside it, conditions that name
    `known` inputs are left out.
    """
    inside = {one.alias for one in join.inputs}
    single = {one.alias for one in join.inputs if one.single}
    own = [on for on in join.on if inside.issuperset(on.inputs)]
    if known and inside != single and not any(equates(on, inside, known) for on in join.on):
        return
    left, placed, pending = [one.alias for one in join.inputs], set[str](), own
    while left:
        alias = next((one for one in left if may_follow(one, placed, single, own)), None)
        if alias is None:
            return
        left.remove(alias)
        placed.add(alias)
        here = [on for on in pending if placed.issuperset(on.inputs)]
        pending = [on for on in pending if on not in here]
        yield alias, here


def may_follow(alias: str, placed: Collection[str], single: Collection[str], conditions: Sequence[Condition]) -> bool:
    """Whether an input can be joined with `placed` ones without comparing every row with every other.

    `single` inputs have one row.
    """
    return alias in single or set(placed) <= set(single) or any(equates(on, {alias}, placed) for on in conditions)


def equates(on: Condition, some: Collection[str], others: Collection[str]) -> bool:
    """Whether a condition equates a value of `some` inputs with one of `others`."""
    sides = (on.equal, on.equal[::-1]) if on.equal is not None else ()
    return any(
        bool(one.inputs) and bool(other.inputs) and set(one.inputs) <= set(some) and set(other.inputs) <= set(others)
        for one, other in sides
    )
