"""Run a SELECT that reads rows in a lake: a worker computes what a view of it would hold, and Postgres orders its rows.

A relation of Postgres is read as of the epoch that is published when the query begins, and one in a lake at the version
that its table had then. Next: `workers.rpc.select`.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

from service.domain.errors import Invalid
from service.domain.parameters import SystemParameters
from service.domain.stage_engine import check_selectable
from service.operations.asking import Asking, computing
from service.operations.offload import beside
from service.operations.statements.call import Call
from service.operations.statements.logical_views import described
from service.operations.statements.outcome import Outcome
from service.operations.statements.staged_views import StagedView, plan_stages
from service.operations.statements.views import read_by
from service.operations.world import World
from service.ports.state_store import DESCRIBE_MS
from service.protocol.columns import ColumnType, TypeName
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId, RelationId, RequestId
from service.protocol.quoting import quoted
from service.protocol.request import Select as Computed
from service.protocol.request import Selected, VerifyStage
from service.protocol.stage import EngineChoice
from service.sql.statements.lake_query import LakeQuery, lake_query
from service.sql.statements.select import Select
from service.sql.statements.views import CreateMaterializedView

ANSWERED: Final = timedelta(seconds=15)
"""The worker ends a query in time. This is for its answer, and for the start of the process that computes it."""
BYTES_MAX: Final = 8 << 20
"""The largest result, in bytes of its texts. It passes through the meta store."""


async def select_from_lake(call: Call, statement: Select, known: SystemParameters) -> Outcome:
    """Return the rows of a query.

    Raises Invalid for what Spark does not compute as Postgres does, with a position, NotFound, Conflict, Unavailable.
    """
    world, row_limit = call.world, call.limit("row_limit", known)
    timeout_ms = call.limit("statement_timeout", known)
    query = await beside(world.parsers, statement.sql, lake_query, statement.sql)
    columns = await described(world, query.sql, query.query.start, timeout_ms=DESCRIBE_MS)
    terms = [f"{term.place([name for name, _ in columns])}{term.direction}" for term in query.order]
    view = await _planned(world, query, len(columns))
    shown = row_limit + 1 if query.limit is None else min(query.limit, row_limit + 1)
    rows_max = shown + query.offset if query.any_rows else row_limit
    async with computing(world, call.asked_by, call.gone) as turn:
        rows = await _computed(turn, view, query, rows_max, timeout_ms=timeout_ms)
    types = [one.type for one in view.relation.visible]
    text = _ordered(rows, list(zip([name for name, _ in columns], types, strict=True)), terms, query, shown)
    result = await world.state_store.reader.query(text, row_limit=row_limit, timeout_ms=timeout_ms)
    return Outcome(f"SELECT {len(result.rows)}", result.columns, result.rows, truncated=result.truncated)


async def _planned(world: World, query: LakeQuery, columns: int) -> StagedView:
    """Return the stages of a view of the query, whose columns have names of their own. Raises Invalid, NotFound."""
    statement = CreateMaterializedView(
        name="the query", if_not_exists=False, options={}, query=query.query, text=query.query.text, sql=query.sql
    )
    found = await read_by(world, statement)
    names = [f"c{number}" for number in range(1, columns + 1)]
    view = await plan_stages(world, statement, found.relations, found.queries, EngineChoice.AUTO, names)
    check_selectable([one.stage for one in view.stages])
    return view


async def _computed(
    turn: Asking, view: StagedView, query: LakeQuery, rows_max: int, *, timeout_ms: int
) -> Sequence[Sequence[str | None]]:
    """Have a worker compute the rows while the epochs that it reads are pinned. Raises Invalid and Unavailable."""
    world = turn.world
    epochs = await _epochs(world, {read.relation for _, read in view.occurrences})
    async with world.stores.begin() as tx:
        asked = await tx.statements.reserve()
    async with AsyncExitStack() as pins:
        for graph, epoch in sorted(set(epochs.values())):
            await pins.enter_async_context(world.state_store.pins.pin(graph, epoch, holder=f"select {asked}"))
        request = Computed(
            id=RequestId(0),
            graph=DATABASE_GRAPH,
            relation=view.relation,
            stages=tuple(
                VerifyStage(
                    stage=one.stage,
                    target=view.target(one),
                    relations=tuple(view.relations[each] for each in one.stage.relations),
                )
                for one in view.stages
            ),
            epochs={relation: epoch for relation, (_, epoch) in epochs.items()},
            rows_max=rows_max,
            any_rows=query.any_rows,
            bytes_max=BYTES_MAX,
            timeout_ms=timeout_ms,
        )
        answer = await turn.ask(request, limit=timedelta(milliseconds=timeout_ms) + ANSWERED)
    assert isinstance(answer, Selected), answer
    return answer.rows


async def _epochs(world: World, relations: set[RelationId]) -> Mapping[RelationId, tuple[GraphId, Epoch]]:
    """Return for each relation its graph, and the epoch that this has published."""
    found: dict[RelationId, tuple[GraphId, Epoch]] = {}
    async with world.stores.begin() as tx:
        for relation in sorted(relations):
            entry = await tx.catalog.get(relation)
            if entry is None:
                raise Invalid(f"relation {relation} was dropped meanwhile")
            (job,) = await tx.jobs.where(ids=[entry.job])
            graph = job.graph if job.own_graph is not None else DATABASE_GRAPH
            found[relation] = graph, (await tx.graphs.state(graph)).published
    return found


def _ordered(
    rows: Sequence[Sequence[str | None]],
    columns: Sequence[tuple[str, ColumnType]],
    terms: Sequence[str],
    query: LakeQuery,
    shown: int,
) -> str:
    """Return the SELECT that gives the rows their types and their order."""
    values = ", ".join(f"{_value(place, kind)} as {quoted(name)}" for place, (name, kind) in enumerate(columns))
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).replace("'", "''")
    order = f" order by {', '.join(terms)}" if terms else ""
    source = f"pg_catalog.json_array_elements('{text}'::pg_catalog.json) as r(v)"
    return f"select {values} from {source}{order} limit {shown} offset {query.offset}"


def _value(place: int, kind: ColumnType) -> str:
    text = f"(r.v ->> {place})"
    if kind.array:
        each = f"select e::{kind.element} from pg_catalog.json_array_elements_text({text}::pg_catalog.json)"
        return f"(case when {text} is not null then array({each} with ordinality as a(e, n) order by n) end)::{kind}"
    # Texts of users are in the order of their bytes.
    return f'{text} collate "C"' if kind.name is TypeName.TEXT else f"{text}::{kind}"
