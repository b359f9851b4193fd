"""Look at a followed table's external database: whether it is the same one, and why pages could not be read."""

from collections.abc import Sequence

from workers.cdc.connecting import AwayError, ChangedError
from workers.cdc.external import Session
from workers.cdc.keys import ExternalKey, ExternalTable
from workers.cdc.table_epoch import altered, remedy
from workers.runners.followed_table import FollowedTable


def older(session: Session, table: FollowedTable) -> str:
    """Return what still runs of the transactions that have to end before a page may be read."""
    return session.older(session.snapshot(), table.scan.readable_after)


def judge(table: FollowedTable, session: Session) -> None:
    """Record on the table why actors could not read. Raises AwayError where the external database does not answer."""
    for outcome in table.outcomes:
        if outcome.away is not None:
            raise AwayError(outcome.away)
        if outcome.broken is not None and table.broken is None:
            table.broken = f"{outcome.broken}: {remedy(table.target.name)}"
        if outcome.altered is not None and table.broken is None:
            one = table.epoch()
            altered(session, one, outcome.altered)
            table.broken = one.broken
        if outcome.waiting is not None:
            table.waiting = outcome.waiting
        if outcome.behind:
            assert table.table is not None
            running = older(session, table)
            table.waiting = f"transactions that began before the table was published still run: {running}"


def check_server(session: Session, tables: Sequence[FollowedTable]) -> None:
    """Raise AwayError where the server is neither the one on which the tables were first followed nor a copy of it."""
    now = session.system()
    for published in (table.scan.published for table in tables):
        before = None if published is None else published.system
        if before is not None and now is not None and before != now:
            raise AwayError(
                f"the server is another one, with a slot of the same name: its system identifier is {now}, not "
                f"{before}; point the source back, or DROP and CREATE it and its tables again"
            )


def looked_at(session: Session, table: FollowedTable) -> ExternalTable | None:
    """Return the table as the external catalog has it now. Mark it as broken and return None where it has changed."""
    external = {column.name: column for column in table.scan.columns}
    key = tuple(ExternalKey(external[part.name].external, external[part.name].type) for part in table.target.key)
    described = ExternalTable(table.target, table.scan, key)
    try:
        found = session.table(described)
    except ChangedError as error:
        one = table.epoch(described)
        altered(session, one, str(error))
        table.broken = one.broken
        return None
    if found is None:
        table.broken = f"the external table {described.name} was dropped or renamed: {remedy(table.target.name)}"
    return found
