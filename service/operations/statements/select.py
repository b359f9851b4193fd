"""Run a SELECT in Postgres, unchanged, under the reader's login."""

from service.domain.errors import Invalid, TooLarge
from service.domain.parameters import SystemParameters
from service.domain.quotas import Quota, bound_of
from service.domain.roles import Role
from service.operations.leaving import unless
from service.operations.naming import named
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome
from service.operations.status.staleness import notices_of
from service.sql.statements.select import CATALOG_PREFIX, Select


@handles(Select, needs=Role.VIEWER)
async def _select(call: Call, statement: Select) -> Outcome:
    catalog = statement.catalog
    async with call.world.stores.begin() as tx:
        for name in statement.relations:
            found = await named(tx, name)
            if found is not None and not found.readable:
                raise found.unreadable
            # A name without a schema is a user's relation if one exists, and otherwise a catalog relation.
            catalog = catalog or (found is None and name.startswith(CATALOG_PREFIX))
        known = SystemParameters.of(await tx.parameters.all())
        notices = await notices_of(tx, statement.relations)
    quota = bound_of(known, call.asked_by.role, Quota.RESULT_BYTES)
    if not (catalog or call.world.table_format.sql_reader):
        raise Invalid(f"only {CATALOG_PREFIX} relations can be queried: the table format of others runs no SELECT")
    query = call.world.reader.query(
        statement.sql,
        row_limit=call.limit("row_limit", known),
        timeout_ms=call.limit("statement_timeout", known),
        catalog=catalog,
        quota=quota,
        caller=call.asked_by.actor,
    )
    try:
        result = await unless(call.gone, query)
    except TooLarge as error:
        if quota is not None and error.limited_by == quota.name:
            call.world.metrics.refused(quota.name)
        raise
    tag = f"SELECT {len(result.rows)}"
    return Outcome(tag, result.columns, result.rows, notices=notices, truncated=result.truncated)
