"""Print the plan of a view of stages: the operator, the inputs and how they are joined, and the indexes of each."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.protocol.ids import RelationId
from service.protocol.relation import Relation
from service.protocol.stage import Input, Join, JoinKind, LookupIndex, Stage
from service.protocol.stage_spark import engine_of
from service.sql.views.explain_costs import Known, costs, index_state, rows_of, warnings


@dataclass(frozen=True, slots=True)
class ExplainedStage:
    """One stage, the relation that it writes, and the lookup indexes that it needs."""

    stage: Stage
    target: Relation
    actors: int
    rate_limit: int | None
    indexes: Collection[LookupIndex]


def stages_text(
    relation: Relation,
    stages: Sequence[ExplainedStage],
    relations: Mapping[RelationId, Relation],
    missing: Collection[LookupIndex],
    known: Known,
    *,
    serverless: bool = False,
) -> tuple[str, ...]:
    """Return the lines of the plan. Conditions are the state store's SQL. `missing` indexes have yet to be built."""
    lines = [
        line
        for number, one in enumerate(stages, 1)
        for line in _stage(number, one, relations, missing, known, last=number == len(stages))
    ]
    needed = {index for one in stages for index in one.indexes}
    return (
        f"StreamMaterialize {{ {_stored(relation)} }}",
        *lines,
        "Backfill strategy: SNAPSHOT_BACKFILL, because the query has stages",
        "Backfill order: each stage after those that it reads",
        *(["Backfill worker: its own, until the job merges"] if serverless else []),
        *warnings([one.stage for one in stages], relations, needed, known),
    )


def _stored(relation: Relation) -> str:
    columns = ", ".join(f"{one.name}(hidden)" if one.hidden else one.name for one in relation.columns)
    key = ", ".join(f"{part.name} DESC" if part.descending else part.name for part in relation.key)
    return f"name: {relation.name}, columns: [{columns}], key: [{key}], vnodes: {relation.vnode_count}"


def _stage(
    number: int,
    one: ExplainedStage,
    relations: Mapping[RelationId, Relation],
    missing: Collection[LookupIndex],
    known: Known,
    *,
    last: bool,
) -> Iterator[str]:
    branch, margin = ("└─", "    ") if last else ("├─", "│   ")
    stage = one.stage
    engine, why = engine_of(stage, store_engine=True)
    facts = [
        f"stage: {number}",
        f"target: {one.target.name}",
        f"operator: {_operator(stage)}",
        f"engine: {engine}",
        f"parallelism: {one.actors}",
        *([] if one.rate_limit is None else [f"rate_limit: {one.rate_limit}"]),
    ]
    yield f"{branch}StreamStage {{ {', '.join(facts)} }}"
    yield f"{margin}engine of history: {engine}, because {why}"
    for join in stage.joins:
        yield from (margin + line for line in _join(join, stage, relations, known))
    yield from (f"{margin}where: {condition.sql}" for condition in stage.where)
    if stage.aggregate is not None:
        keys = ", ".join(stage.aggregate.keys)
        yield f"{margin}group by: [{keys}], sums: [{', '.join(stage.aggregate.measures)}]"
    if stage.partition is not None:
        yield f"{margin}computed again by: [{', '.join(stage.partition.columns)}]"
    if not last:
        yield f"{margin}stores: {_stored(one.target)}"
    for index in sorted(one.indexes, key=str):
        name = relations[index.relation].name
        yield f"{margin}index: {name} ({', '.join(index.columns)}), {index_state(known, index, missing)}"
    yield from (margin + line for line in costs(stage, relations, known))


def _operator(stage: Stage) -> str:
    if stage.aggregate is not None:
        return "aggregate"
    if stage.partition is not None:
        return "partition"
    return "join" if len(stage.inputs) > 1 else "rows"


def _join(join: Join, stage: Stage, relations: Mapping[RelationId, Relation], known: Known) -> Iterator[str]:
    def shown(one: Input) -> str:
        driver = ", driver" if one == stage.driver else ""
        # A hidden relation has no rows before it exists.
        rows = f", {rows_of(known, one.relation)}" if one.relation > 0 else ""
        return f"{relations[one.relation].name} {one.alias}{driver}{rows}"

    kind = "input" if join.kind is JoinKind.INNER else f"{join.kind} join"
    yield f"{kind}: {'; '.join(shown(one) for one in join.inputs)}"
    yield from (f"  on: {condition.sql}" for condition in join.on)
