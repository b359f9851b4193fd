"""Run a SELECT in Postgres, unchanged, under the reader's login."""

from dataclasses import replace
from typing import Final

from service.domain.errors import InLake, Invalid, TooLarge
from service.domain.parameters import SystemParameters
from service.domain.quotas import Quota, bound_of
from service.domain.roles import Role
from service.operations.leaving import unless
from service.operations.naming import those_named
from service.operations.statements.call import Call, handles
from service.operations.statements.lake_select import select_from_lake
from service.operations.statements.outcome import Outcome
from service.operations.status.staleness import notices_of
from service.protocol.relation import CATALOG_PREFIX
from service.sql.statements.select import Select
from service.sql.statements.views import ExplainSelect

_RELATIONS_MAX: Final = 1_000
"""Each is looked up, in one transaction. Postgres plans no query over as many within a time limit."""


@handles(ExplainSelect, needs=Role.VIEWER)
async def _explain(call: Call, statement: ExplainSelect) -> Outcome:
    known, catalog, _ = await _read(call, statement.select)
    timeout = call.limit("statement_timeout", known)
    plan = call.world.state_store.reader.explain(statement.select.sql, timeout_ms=timeout, catalog=catalog)
    try:
        lines = await unless(call.gone, plan)
    except Invalid as error:
        place = None if error.position is None else error.position + statement.offset
        raise Invalid(error.message, position=place) from None
    return Outcome("EXPLAIN", (("QUERY PLAN", "text"),), tuple((line,) for line in lines))


@handles(Select, needs=Role.VIEWER)
async def _select(call: Call, statement: Select) -> Outcome:
    known, catalog, notices = await _read(call, statement)
    quota = bound_of(known, call.asked_by.role, Quota.RESULT_BYTES)
    query = call.world.state_store.reader.query(
        statement.sql,
        row_limit=call.limit("row_limit", known),
        timeout_ms=call.limit("statement_timeout", known),
        catalog=catalog,
        quota=quota,
    )
    try:
        result = await unless(call.gone, query)
    except InLake:
        return replace(await select_from_lake(call, statement, known), notices=notices)
    except TooLarge as error:
        if quota is not None and error.limited_by == quota.name:
            call.world.metrics.refused(quota.name)
        raise
    tag = f"SELECT {len(result.rows)}"
    return Outcome(tag, result.columns, result.rows, notices=notices, truncated=result.truncated)


async def _read(call: Call, statement: Select) -> tuple[SystemParameters, bool, tuple[str, ...]]:
    """Return the parameters, whether the query reads `rw_catalog`, and notices. Raises Invalid and Conflict."""
    catalog = statement.catalog
    if len(statement.relations) > _RELATIONS_MAX:
        raise Invalid(f"a query can name at most {_RELATIONS_MAX} relations")
    async with call.world.calls.reads.turn(call.asked_by.actor), call.world.stores.begin() as tx:
        found = await those_named(tx, statement.relations)
        for name in statement.relations:
            if name in found and not found[name].readable:
                raise found[name].unreadable
            # A name without a schema is a user's relation if one exists, and otherwise a catalog relation.
            catalog = catalog or (name not in found and name.startswith(CATALOG_PREFIX))
        known = SystemParameters.of(await tx.parameters.all())
        notices = await notices_of(tx, statement.relations)
    if not (catalog or call.world.state_store.table_format.sql_reader):
        raise Invalid(f"only {CATALOG_PREFIX} relations can be queried: the table format of others runs no SELECT")
    return known, catalog, notices
