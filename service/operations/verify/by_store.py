"""Compare a view with the state store's result of its query. One statement reads both, at one published epoch."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from service.domain.errors import Conflict, Unavailable
from service.domain.job import Job, JobState
from service.operations.naming import named
from service.operations.offload import parsed
from service.operations.polling import until
from service.operations.world import Context, World
from service.ports.state_store import DESCRIBE_MS
from service.protocol.columns import Column
from service.protocol.ids import DATABASE_GRAPH, RequestId
from service.protocol.plan import JobPlan
from service.protocol.quoting import quoted
from service.protocol.relation import Relation, RelationKind
from service.protocol.request import Verified
from service.protocol.stage import Engine
from service.sql.statements.views import CreateMaterializedView

CAUGHT_UP: Final = timedelta(minutes=5)
"""How long a view with a graph of its own may take to come to the present epoch."""
WAIT: Final = timedelta(minutes=10)
"""The statement's timeout. It occupies one of the readers' connections."""
DIFFERING_MAX: Final = 20
LINE_CHARACTERS_MAX: Final = 2_000
"""So much of a row that differs is shown. The answer is sent, and kept for its idempotency key."""
_MODULUS: Final = 1 << 64

# The query comes first, where no other name of this statement hides a user's relation. Rows are compared as texts.
COMPARED: Final = """
with wanted as materialized (select {row}::text as line from (
{query}
) tidefill_row),
held as materialized (select {row}::text as line from public.{view} tidefill_row),
counted as (
    select line, sum(n) as missing
    from (select line, 1 as n from wanted union all select line, -1 from held) every
    group by line
    having sum(n) <> 0
)
select 'wanted', count(*)::text, coalesce(sum(hashtextextended(line, 0)), 0)::text from wanted
union all
select 'held', count(*)::text, coalesce(sum(hashtextextended(line, 0)), 0)::text from held
union all
(select case when missing > 0 then 'missing' else 'extra' end, null, left(line, {long}) from counted
    order by line limit {most})
"""


async def compare(world: World, job: Job) -> Verified:
    """Compare a materialized view with the state store's result of its query.

    Raises Conflict for another kind of relation or a view that is not readable, and Invalid and Unavailable as a SELECT
    does.
    """
    async with world.stores.begin() as tx:
        found = await named(tx, job.name)
        # The statement reads this published epoch or a later one.
        epoch = (await tx.graphs.state(DATABASE_GRAPH)).published
        asked = await tx.statements.reserve()
        plans = await tx.plans.outlines([job.id])
    if job.kind is not RelationKind.MATERIALIZED_VIEW:
        raise Conflict(f'"{job.name}" is a {job.kind}: the store has an answer for materialized views alone')
    if job.state is not JobState.CREATED or found is None or not found.readable:
        raise Conflict(f'"{job.name}" cannot be read yet: the store\'s answer is compared with what can')
    if job.own_graph is not None:
        await _caught_up(world, job)
    statement = await parsed(world.parsers, found.definition)
    assert isinstance(statement, CreateMaterializedView), statement
    assert found.entry is not None, found
    row = _row(found.entry.relation, plans)
    query = await _query(world, statement, found.entry.relation)
    sql = COMPARED.format(row=row, query=query, view=quoted(job.name), most=DIFFERING_MAX, long=LINE_CHARACTERS_MAX)
    result = await world.state_store.reader.query(
        sql, row_limit=DIFFERING_MAX + 2, timeout_ms=int(WAIT.total_seconds() * 1000)
    )
    counts = {what: (int(rows), _digest(total)) for what, rows, total in result.rows if rows is not None}
    lines = [(what, line) for what, rows, line in result.rows if rows is None]
    (expected, expected_digest), (rows, digest) = counts["wanted"], counts["held"]
    return Verified(
        id=RequestId(asked),
        engine=Engine.STORE,
        epoch=epoch,
        equal=not lines,
        rows=rows,
        expected_rows=expected,
        digest=digest,
        expected_digest=expected_digest,
        rows_missing=tuple(line for what, line in lines if what == "missing"),
        rows_extra=tuple(line for what, line in lines if what == "extra"),
    )


async def _query(world: World, statement: CreateMaterializedView, relation: Relation) -> str:
    """Return the view's query with the view's columns only. A star names the columns that were added since, too.

    Raises Conflict if they cannot be told apart, and Invalid and Unavailable as a SELECT does.
    """
    named = [name for name, _ in await world.state_store.reader.describe(statement.sql, timeout_ms=DESCRIBE_MS)]
    visible = [column.name for column in relation.visible]
    if len(named) == len(visible):
        return statement.sql
    if statement.query.columns or any(named.count(name) != 1 for name in visible):
        raise Conflict(
            f'the query of "{relation.name}" names columns by a star, and a table has a new one: create it anew'
        )
    return f"select {', '.join(map(quoted, visible))} from (\n{statement.sql}\n) tidefill_view"


async def _caught_up(world: Context, job: Job) -> None:
    """Wait until a view with a graph of its own shows what was committed when this was called.

    Raises Unavailable after `CAUGHT_UP`. What changes later may be missing, so such a view is compared at rest.
    """
    async with world.stores.begin() as tx:
        upto = await tx.snapshots.readable(job.id)

    async def look() -> bool | None:
        async with world.stores.begin() as tx:
            snapshot = (await tx.snapshots.of_jobs([job.id])).get(job.id)
            if snapshot is None:
                return True
            state = await tx.graphs.state(snapshot.graph)
        shown = state.published == state.committed
        return (snapshot.consumed is not None and snapshot.consumed >= upto and shown) or None

    if await until(world, look, limit=CAUGHT_UP) is None:
        raise Unavailable(f'"{job.name}" has a graph of its own and lags behind what it reads: try again later')


def _row(relation: Relation, plans: Sequence[JobPlan]) -> str:
    """Print the row that is compared.

    Of keys that are equal and look different, as -0 and 0, a group shows one that its rows have. Which one Postgres's
    answer shows depends on the order of rows, so values of such types are compared by value then.
    """
    chosen = any(
        stage.partition is not None or (stage.aggregate is not None and stage.aggregate.looks)
        for plan in plans
        for stage, _ in plan.staged
    )
    if not (chosen and any(column.type.looks_differ for column in relation.visible)):
        return "tidefill_row"
    return f"row({', '.join(_by_value(column) for column in relation.visible)})"


def _by_value(column: Column) -> str:
    name = f"tidefill_row.{quoted(column.name)}"
    if not column.type.looks_differ:
        return name
    return f"trim_scale({name})" if column.type.unbounded else f"({name} + 0::{column.type})"


def _digest(total: str) -> str:
    return f"{int(total) % _MODULUS:016x}"
