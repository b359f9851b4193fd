"""Plan a view as stages, which Spark or the state store computes.

Postgres checks the whole text first and gives the view's columns. The planner makes drafts of the stages, and Postgres
types each of them from a SELECT over typed NULLs. Nothing is read. Next: `service.sql.queries.plan`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from service.domain.connectors import CONNECTOR
from service.domain.errors import Invalid
from service.domain.order import Order
from service.domain.parameters import SystemParameters
from service.domain.stage_engine import check_lake, with_engine
from service.domain.strategy import Strategy
from service.operations.offload import apart, planned, typed
from service.operations.statements.logical_views import described
from service.operations.world import Context, World
from service.ports.records import THE_RELATION, NewFragment, NewOperator, NewTableScan, hidden_id, node_of, output_id
from service.ports.state_store import DESCRIBE_MS
from service.protocol.barrier import ScanLimits
from service.protocol.connector import Connector
from service.protocol.ids import RelationId
from service.protocol.plan import ScanType
from service.protocol.quoting import quoted
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import EngineChoice, Input, Join, JoinKind, Stage, Value
from service.protocol.stage_spark import spark_column, spark_reason
from service.sql.queries.auto_order import auto_order
from service.sql.queries.drafts import Draft, Planned
from service.sql.queries.finishing import description, finished
from service.sql.queries.planner import STAGES_MAX
from service.sql.statements.views import CreateMaterializedView
from service.sql.text.cursor import checked_column
from service.sql.text.tree import Tree
from service.sql.views.backfill_order import CYCLE, EDGES_MAX, TOO_MANY, Edges, acyclic, bind_order
from service.sql.views.explain_stages import WHY_STORE

_KEPT: Final = "kept"


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage with its driver. `output` is the index in `hidden` of the relation that it writes, None for the view."""

    stage: Stage
    driver: Relation
    output: int | None

    @property
    def target(self) -> RelationId:
        """The relation that the stage writes."""
        return output_id(self.output)

    @property
    def node(self) -> RelationId:
        """The node of the backfill order to which the stage belongs."""
        return node_of(self.stage, self.driver.id, self.output)


@dataclass(frozen=True, slots=True)
class StagedView:
    """A view of stages, in order, with its hidden relations. `relations` are all that the stages read or write."""

    relation: Relation
    hidden: tuple[Relation, ...]
    stages: tuple[PlannedStage, ...]
    relations: Mapping[RelationId, Relation]

    @property
    def projects(self) -> bool:
        """Whether each row is computed from one row of a user's relation."""
        return not self.hidden and all(one.stage.is_projection for one in self.stages)

    @property
    def occurrences(self) -> tuple[tuple[int, Input], ...]:
        """The occurrences of relations that are not the view's own, each with the number of its stage."""
        return tuple(
            (number, read)
            for number, one in enumerate(self.stages)
            for read in one.stage.inputs
            if read.relation > THE_RELATION
        )

    def target(self, one: PlannedStage) -> Relation:
        """Return the relation that a stage writes."""
        return self.relation if one.output is None else self.hidden[one.output]

    @property
    def order(self) -> tuple[tuple[RelationId, RelationId], ...]:
        """The backfill order of a Snapshot backfill: a stage comes after those that write what it reads."""
        edges = (
            (read.relation, one.node)
            for one in self.stages
            for read in one.stage.inputs
            if read.relation < THE_RELATION
        )
        return tuple(dict.fromkeys(edges))


def check_staged(
    world: World, statement: CreateMaterializedView, view: StagedView, strategy: Strategy, kind: RelationKind
) -> None:
    """Raise Invalid if a view of stages cannot be created in this way."""
    place = statement.query.start + 1
    for one in view.stages:
        check_lake(one.stage, [view.relations[each.relation] for each in one.stage.inputs])
    reason = next(filter(None, (spark_reason(one.stage) for one in view.stages)), None)
    what = "joins, aggregates, subqueries and windows"
    snapshot = strategy.scan_type is ScanType.SNAPSHOT_BACKFILL
    if is_sent_away(statement, kind) and (is_kept(view) or not view.projects) and not snapshot:
        raise Invalid(
            f"a {'sink' if kind is RelationKind.SINK else 'view in a lake'} with {reason if view.projects else what}"
            " needs a Snapshot backfill: SET streaming_use_snapshot_backfill = true, or create a materialized view,"
            " then this one FROM it",
            position=place,
        )
    arranged = strategy.scan_type is ScanType.ARRANGEMENT_BACKFILL and not view.projects
    if not world.state_store.table_format.store_engine and (arranged or reason is not None):
        raise Invalid(f"the state store cannot compute what Spark cannot: {reason or WHY_STORE}", position=place)
    if strategy.scan_type is ScanType.BACKFILL and not view.projects:
        raise Invalid(
            f"{what} cannot have the actors of one upstream, as a NoShuffle backfill has, because {strategy.why}:"
            " SET streaming_use_snapshot_backfill = true, or streaming_use_arrangement_backfill = true",
            position=place,
        )


def is_sent_away(statement: CreateMaterializedView, kind: RelationKind) -> bool:
    """Whether the rows go to a target outside: those of a sink, or of a view in a lake."""
    return kind is RelationKind.SINK or statement.target is not None


def is_kept(view: StagedView) -> bool:
    """Whether the rows that are sent away are kept: the store has the sums of its groups, or computes its rows."""
    last = (one.stage for one in view.stages if one.output is None)
    return any(one.aggregate is not None or spark_reason(one) is not None for one in last)


def kept(view: StagedView) -> StagedView:
    """Return a view for a sink: its rows are kept in a hidden relation, from which the sink gets each change."""
    place = len(view.hidden)
    driver = view.relation.model_copy(update={"id": hidden_id(place), "name": f"__{view.relation.name}_{place + 1}"})
    names = [column.name for column in driver.columns]
    passed = Stage(
        joins=(Join(kind=JoinKind.INNER, inputs=(Input(alias=_KEPT, relation=driver.id),)),),
        rows=tuple(
            Value(
                name=name,
                sql=f"{quoted(_KEPT)}.{quoted(name)}",
                spark=f"`{spark_column(_KEPT, name).replace('`', '``')}`",
                reads=((_KEPT, name),),
                column=name,
            )
            for name in names
        ),
    )
    stages = tuple(replace(one, output=place) if one.output is None else one for one in view.stages)
    relations = {**view.relations, driver.id: driver}
    return StagedView(view.relation, (*view.hidden, driver), (*stages, PlannedStage(passed, driver, None)), relations)


def check_store_engine(choice: EngineChoice) -> None:
    """Raise Invalid if Spark shall read what an Arrangement backfill of stages reads."""
    if choice is EngineChoice.SPARK:
        raise Invalid(
            f"stage_engine is spark, and an Arrangement backfill of a view with stages needs the store: {WHY_STORE}."
            " SET stage_engine = auto, or SET streaming_use_snapshot_backfill = true",
            pointer="stage_engine",
        )


@dataclass(frozen=True, slots=True)
class NamedOrder:
    """A backfill order over the names of relations. `notices` say why AUTO found none."""

    edges: Edges = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WalkedOrder:
    """A backfill order over what stages write, and the same in names as the user gave it."""

    order: Order
    named: NamedOrder

    def shown(self, view: StagedView) -> Edges:
        """Return all edges in names, hidden relations included."""
        names = {id_: relation.name for id_, relation in view.relations.items()}
        return tuple((names[before], names[after]) for before, after in self.order)


async def arranged_order(
    world: World,
    statement: CreateMaterializedView,
    staged: StagedView,
    known: Mapping[str, object],
    views: Mapping[str, Tree],
) -> NamedOrder:
    """Return the order of the scans of an Arrangement backfill. `known` are the names that a user may write.

    Raises Invalid and NotFound.
    """
    used = {staged.relations[one.relation].name for _, one in staged.occurrences}
    if statement.order.auto:
        found = await apart(world.parsers, statement.text, views, auto_order, statement.query, views)
        edges = tuple(edge for edge in found if used.issuperset(edge))
        if len(edges) > EDGES_MAX:
            return NamedOrder(notices=(TOO_MANY,))
        return NamedOrder(edges) if acyclic(edges) else NamedOrder(notices=(CYCLE,))
    return NamedOrder(bind_order(statement.order, used, {*known, *views}))


def walked_order(statement: CreateMaterializedView, staged: StagedView, names: Collection[str]) -> WalkedOrder:
    """Return the order of a Snapshot backfill: that of the stages, and what FIXED says of the relations that they walk.

    `names` are those that a user may write. Raises Invalid and NotFound.
    """
    used = {staged.relations[one.relation].name for _, one in staged.occurrences}
    edges = bind_order(statement.order, used, names)
    walked: dict[str, set[RelationId]] = {}
    for one in staged.stages:
        if one.stage.driver.relation > THE_RELATION:
            walked.setdefault(one.driver.name, set()).add(one.node)
    if sum(len(walked.get(before, ())) * len(walked.get(after, ())) for before, after in edges) > EDGES_MAX:
        raise Invalid(TOO_MANY, position=statement.order.edges[0][0].position)
    pairs = [(x, y) for before, after in edges for x in walked.get(before, ()) for y in walked.get(after, ())]
    order = tuple(dict.fromkeys((*staged.order, *pairs)))
    if not acyclic(order):
        message = (
            "backfill_order contradicts the order of the view's stages, or puts two branches of one UNION in an order:"
            " SET streaming_use_snapshot_backfill = false gives each relation a scan of its own"
        )
        raise Invalid(message, position=statement.order.edges[0][0].position)
    looked_up = sorted({name for edge in edges for name in edge} - walked.keys())
    notices = tuple(
        f'"{name}" is looked up, so all its rows are there from the start: backfill_order does not concern it'
        for name in looked_up
    )
    return WalkedOrder(order, NamedOrder(edges, notices))


def arranged(staged: StagedView, scans: Sequence[NewTableScan]) -> tuple[NewFragment, ...]:
    """Return the fragments of an Arrangement backfill: of each stage the scans of its inputs, then its operator.

    `scans` are those of the occurrences, in order.
    """
    fragments: list[NewFragment] = []
    left = list(scans)
    for number, one in enumerate(staged.stages):
        mine = sum(at == number for at, _ in staged.occurrences)
        whole = ((0, staged.target(one).vnode_count - 1),)
        fragments += [*left[:mine], NewOperator(actors=(whole,), query=one.stage, output=one.output)]
        left = left[mine:]
    return tuple(fragments)


async def scan_limits(world: Context) -> ScanLimits:
    """Return from how many rows on Spark computes, as the next barrier says it."""
    async with world.stores.begin() as tx:
        return SystemParameters.of(await tx.parameters.all()).of_scans(shared=False)


async def plan_stages(
    world: World,
    statement: CreateMaterializedView,
    relations: Mapping[str, Relation],
    views: Mapping[str, Tree],
    engine: EngineChoice,
    names: Sequence[str] | None = None,
) -> StagedView:
    """Return the stages of a view. `names` are those of its columns, if not those that Postgres gives.

    Raises Invalid, NotFound, Unavailable.
    """
    names = [name for name, _ in await columns_of(world, statement)] if names is None else names
    drafts = await planned(world.parsers, statement.text, statement.query, relations, views, names)
    place = statement.query.start + 1
    if len(drafts) > STAGES_MAX:
        raise Invalid(f"the view has {len(drafts)} stages, and may have {STAGES_MAX}", position=place)
    known = {relation.id: relation for relation in relations.values()}
    stages: list[PlannedStage] = []
    for draft in drafts:
        one = await _finished(world, draft, known, place)
        relation = one.relation
        output = None if draft.final else draft.target
        before = known.get(relation.id)
        known[relation.id] = relation if before is None else _either(before, relation)
        stages.append(PlannedStage(one.stage, known[one.stage.driver.relation], output))
    lake = None if statement.target is None else Connector(name=statement.target.options[CONNECTOR], options={})
    made = known[THE_RELATION].model_copy(update={"name": statement.name, "lake": lake})
    hidden = tuple(
        known[hidden_id(at)].model_copy(update={"name": f"__{statement.name}_{at + 1}"})
        for at in range(max((one.output + 1 for one in stages if one.output is not None), default=0))
    )
    named = {hidden_id(at): one for at, one in enumerate(hidden)}
    known = {**known, **named, THE_RELATION: made}
    return StagedView(made, hidden, tuple(replace(one, stage=with_engine(one.stage, engine)) for one in stages), known)


async def columns_of(world: World, statement: CreateMaterializedView) -> Sequence[tuple[str, str]]:
    """Return the view's columns as (name, type). Postgres checks the text, and its positions become the statement's.

    Raises Invalid.
    """
    offset = statement.query.start
    columns = await described(world, statement.sql, offset, timeout_ms=DESCRIBE_MS)
    if not columns:
        raise Invalid("a view needs a column", position=offset + 1)
    named = (name if name != "?column?" else f"column{number}" for number, (name, _) in enumerate(columns, 1))
    names = [checked_column(name, offset + 1) for name in statement.query.named([*named])]
    return [(name, kind) for name, (_, kind) in zip(names, columns, strict=True)]


async def _finished(world: World, draft: Draft, known: Mapping[RelationId, Relation], place: int) -> Planned:
    text = await typed(world.parsers, draft, description, known)
    try:
        columns = await world.state_store.reader.describe(text, timeout_ms=DESCRIBE_MS)
    except Invalid as error:
        # The position is one in the description.
        raise Invalid(error.message, position=place) from None
    try:
        return await typed(world.parsers, draft, finished, [kind for _, kind in columns], known)
    except Invalid as error:
        raise Invalid(error.message, position=error.position or place) from None


def _either(one: Relation, other: Relation) -> Relation:
    """Return the relation that two drafts write. A column that is NULL in one of them is nullable."""
    columns = tuple(
        mine.model_copy(update={"nullable": mine.nullable or theirs.nullable})
        for mine, theirs in zip(one.columns, other.columns, strict=True)
    )
    return one.model_copy(update={"columns": columns})
