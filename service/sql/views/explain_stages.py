"""Print the plan of a view: the operator of each stage, the inputs and how they are joined, and the indexes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.strategy import Strategy
from service.protocol.ids import RelationId
from service.protocol.relation import Relation
from service.protocol.stage import Engine, Input, Join, JoinKind, LookupIndex, Stage
from service.protocol.stage_spark import engine_of, lake_reason
from service.sql.views.backfill_order import Edges
from service.sql.views.explain import engines
from service.sql.views.explain_costs import Known, costs, index_state, rows_of, warnings

WHY_STORE: Final = "only the store looks up rows within what was read of each input"
"""Why Spark computes no stage of an Arrangement backfill."""


@dataclass(frozen=True, slots=True)
class ExplainedScan:
    """A scan: that of a stage, which reads its driver, or of the input `alias` of an operator (None: of a stage)."""

    actors: int
    rate_limit: int | None
    alias: str | None = None

    @property
    def facts(self) -> list[str]:
        """The parallelism and the limit, in rows per second and actor."""
        return [
            f"parallelism: {self.actors}",
            *([] if self.rate_limit is None else [f"rate_limit: {self.rate_limit}"]),
        ]


@dataclass(frozen=True, slots=True)
class ExplainedStage:
    """One stage, the relation that it writes, its scans, and the lookup indexes that it needs."""

    stage: Stage
    target: Relation
    scans: Sequence[ExplainedScan]
    indexes: Collection[LookupIndex]

    @property
    def arranged(self) -> bool:
        """Whether it is an operator, which follows scans of its inputs, but those that the view itself writes."""
        return all(scan.alias is not None for scan in self.scans)


def stages_text(
    relation: Relation,
    stages: Sequence[ExplainedStage],
    relations: Mapping[RelationId, Relation],
    missing: Collection[LookupIndex],
    known: Known,
    strategy: Strategy,
    order: Edges,
    *,
    serverless: bool = False,
) -> tuple[str, ...]:
    """Return the lines of the plan. Conditions are the state store's SQL. `missing` indexes have yet to be built."""
    lines = [
        line
        for number, one in enumerate(stages, 1)
        for line in _stage(number, one, relations, missing, known, strategy, last=number == len(stages))
    ]
    needed = {index for one in stages for index in one.indexes}
    arranged = any(one.arranged for one in stages)
    projects = all(one.stage.is_projection for one in stages)
    edges = ", ".join(f"{before} -> {after}" for before, after in order)
    fixed = [f"FIXED({edges})"] if edges else []
    ordered = (fixed or ["NONE"]) if arranged or projects else [*fixed, "each stage after those that it reads"]
    return (
        f"StreamMaterialize {{ {_stored(relation)} }}",
        *lines,
        f"Backfill strategy: {strategy.scan_type}, because {strategy.why}",
        f"Backfill order: {', '.join(ordered)}",
        *(["Note: groups and padded rows are written again while their inputs are read"] if arranged else []),
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
    strategy: Strategy,
    *,
    last: bool,
) -> Iterator[str]:
    branch, margin = ("└─", "    ") if last else ("├─", "│   ")
    stage, arranged = one.stage, one.arranged
    no_store = lake_reason([*(relations[each.relation] for each in stage.inputs), one.target])
    engine, why = (Engine.STORE, WHY_STORE) if arranged else engine_of(stage, no_store)
    facts = [
        f"stage: {number}",
        f"target: {one.target.name}",
        f"operator: {_operator(stage)}",
        f"engine: {engine or 'by rows'}",
        *([] if arranged else [f"type: {strategy.scan_type}", *one.scans[0].facts]),
    ]
    yield f"{branch}StreamStage {{ {', '.join(facts)} }}"
    history, changes = engines(known.limits, engine, why, alone=stage.is_alone)
    yield f"{margin}engine of history: {history}"
    yield f"{margin}engine of changes: {changes}"
    if arranged:
        yield from (margin + line for line in _scans(one, relations, strategy))
    if stage.is_projection:
        yield f"{margin}projection: {', '.join(value.sql for value in stage.rows)}"
    for join in stage.joins:
        yield from (margin + line for line in _join(join, stage, relations, known))
    yield from (margin + line for line in _ending(stage))
    if one.target.id < 0:
        yield f"{margin}stores: {_stored(one.target)}"
    for index in sorted(one.indexes, key=str):
        name = relations[index.relation].name
        yield f"{margin}index: {name} ({', '.join(index.columns)}), {index_state(known, index, missing)}"
    yield from (margin + line for line in costs(stage, relations, known))


def _ending(stage: Stage) -> Iterator[str]:
    yield from (f"where: {condition.sql}" for condition in stage.where)
    if stage.aggregate is not None:
        keys = ", ".join(stage.aggregate.keys)
        yield f"group by: [{keys}], sums: [{', '.join(stage.aggregate.measures)}]"
    if stage.partition is not None:
        yield f"computed again by: [{', '.join(stage.partition.columns)}]"


def _scans(one: ExplainedStage, relations: Mapping[RelationId, Relation], strategy: Strategy) -> Iterator[str]:
    of = {each.alias: relations[each.relation].name for each in one.stage.inputs}
    for scan in one.scans:
        assert scan.alias is not None
        facts = [f"table: {of[scan.alias]}", f"input: {scan.alias}", f"type: {strategy.scan_type}", *scan.facts]
        yield f"StreamTableScan {{ {', '.join(facts)} }}"


def _operator(stage: Stage) -> str:
    if stage.aggregate is not None:
        return "aggregate"
    if stage.partition is not None:
        return "partition"
    return "projection" if stage.is_projection else "join"


def _join(join: Join, stage: Stage, relations: Mapping[RelationId, Relation], known: Known) -> Iterator[str]:
    def shown(one: Input) -> str:
        driver = ", driver" if one == stage.driver else ""
        # A hidden relation has no rows before it exists.
        rows = f", {rows_of(known, one.relation)}" if one.relation > 0 else ""
        return f"{relations[one.relation].name} {one.alias}{driver}{rows}"

    kind = "input" if join.kind is JoinKind.INNER else f"{join.kind} join"
    yield f"{kind}: {'; '.join(shown(one) for one in join.inputs)}"
    word = "where" if join == stage.joins[0] and len(join.inputs) == 1 else "on"
    yield from (f"  {word}: {condition.sql}" for condition in join.on)
