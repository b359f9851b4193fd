"""Lend epochs to readers with a login of their own: an epoch of some relations, to be read by vnodes in many sessions.

The public views show the newest published epoch only. So a borrower reads the versioned tables themselves, `_from` and
`_to` and the columns that users see, and no others. The epoch stays readable while the loan is renewed: it is a pin.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from psycopg import sql

from service.domain.errors import Conflict
from service.domain.lending import LOAN_SECONDS, LOANS_MAX, Loan
from service.protocol.ids import Epoch, GraphId
from service.protocol.relation import Relation
from service.serving import relation_ddl
from service.serving.connections import Connection, Pool, translated
from service.serving.pins import EXPIRY, take

_READABLE: Final = (
    "select bool_and(has_column_privilege(%s, %s::regclass, name, 'select')) from unnest(%s::text[]) as name"
)
_LOCK: Final = 0x7469646566696C6E
"""Its advisory lock serialises grants."""
_BORROWER_LOCK: Final = 0x7469646566696C6F
"""Its advisory locks serialise the loans of each borrower."""
_LOANS: Final = (
    "select count(distinct holder) from state.pin where starts_with(holder, %s) and expires_at > clock_timestamp()"
)
_END: Final = "delete from state.pin where holder = %s"
_VERSIONS: Final = ("_vnode", "_from", "_to")


class PostgresLending:
    """See `service.ports.lending.Lending`. `pool` is the owner's, and `group` that of the logins."""

    def __init__(self, pool: Pool, group: str) -> None:
        self._pool, self._group = pool, group

    async def lend(self, relations: Sequence[Relation], epochs: Mapping[GraphId, Epoch], *, loan: Loan) -> None:
        with translated():
            async with self._pool.connection() as conn:
                async with conn.transaction():
                    await self._count(conn, loan.borrower)
                    # For a moment only, because the leader waits for the horizons that this locks.
                    for graph, epoch in sorted(epochs.items()):
                        await take(conn, graph, epoch, str(loan), seconds=LOAN_SECONDS)
                try:
                    # Each for itself: grants that were taken back would be made again by the next call.
                    for relation in relations:
                        async with conn.transaction():
                            await self._open(conn, relation)
                except BaseException:
                    await conn.execute(_END, [str(loan)])
                    raise

    async def _count(self, conn: Connection, borrower: str) -> None:
        """Raise Conflict if the borrower has too many loans. Until the transaction ends, it gets no other one."""
        whose = Loan.of_borrower(borrower)
        await conn.execute("select pg_advisory_xact_lock(hashtextextended(%s, %s))", [whose, _BORROWER_LOCK])
        found = await (await conn.execute(_LOANS, [whose])).fetchone()
        if found is not None and found[0] >= LOANS_MAX:
            raise Conflict(f"the caller reads {LOANS_MAX} epochs already: one of them has to end first")

    async def _open(self, conn: Connection, relation: Relation) -> None:
        """Let the logins read the versions of a relation, unless they may."""
        group, table = sql.Identifier(self._group), relation_ddl.table(relation.id)
        columns = [*_VERSIONS, *(column.name for column in relation.visible)]
        # A grant that changes nothing writes to the catalog, too, and two at once fail.
        found = await conn.execute(_READABLE, [self._group, table.as_string(conn), columns])
        if await found.fetchone() != (True,):
            await conn.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
            await conn.execute(sql.SQL("grant usage on schema state to {}").format(group))
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            await conn.execute(sql.SQL("grant select ({}) on {} to {}").format(names, table, group))

    async def renew(self, loan: str) -> bool:
        with translated():
            async with self._pool.connection() as conn:
                renewed = await conn.execute(
                    f"update state.pin set expires_at = {EXPIRY} where holder = %s and expires_at > clock_timestamp()",
                    [LOAN_SECONDS, loan],
                )
                return renewed.rowcount > 0

    async def end(self, loan: str) -> None:
        with translated():
            async with self._pool.connection() as conn:
                await conn.execute(_END, [loan])
