"""Compare a view with the state store's result of its query. One statement reads both, at one published epoch."""

from datetime import timedelta
from typing import Final

from service.domain.errors import Conflict
from service.domain.job import Job, JobState
from service.operations.naming import named
from service.operations.offload import parsed
from service.operations.world import World
from service.protocol.ids import DATABASE_GRAPH, RequestId
from service.protocol.relation import RelationKind
from service.protocol.request import Engine, Verified
from service.sql.statements.views import CreateMaterializedView

WAIT: Final = timedelta(minutes=10)
"""The statement's timeout. It occupies one of the readers' connections."""
DIFFERING_MAX: Final = 20
_MODULUS: Final = 1 << 64

# The query comes first, where no other name of this statement hides a user's relation. Rows are compared as texts.
_COMPARED: Final = """
with wanted as materialized (select tidefill_row::text as line from (
{query}
) tidefill_row),
held as materialized (select tidefill_row::text as line from public.{view} tidefill_row),
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
(select case when missing > 0 then 'missing' else 'extra' end, null, line from counted order by line limit {most})
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
    if job.kind is not RelationKind.MATERIALIZED_VIEW:
        raise Conflict(f'"{job.name}" is a {job.kind}: the store has an answer for materialized views alone')
    if job.state is not JobState.CREATED or found is None or not found.readable:
        raise Conflict(f'"{job.name}" cannot be read yet: the store\'s answer is compared with what can')
    statement = await parsed(world.parsers, found.definition)
    assert isinstance(statement, CreateMaterializedView), statement
    quoted = '"' + job.name.replace('"', '""') + '"'
    sql = _COMPARED.format(query=statement.sql, view=quoted, most=DIFFERING_MAX)
    result = await world.reader.query(sql, row_limit=DIFFERING_MAX + 2, timeout_ms=int(WAIT.total_seconds() * 1000))
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


def _digest(total: str) -> str:
    return f"{int(total) % _MODULUS:016x}"
