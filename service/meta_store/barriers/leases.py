"""The leader lease: one row with a growing term, timed by the database's clock (I7)."""

from datetime import timedelta
from typing import Final

from sqlalchemy import ColumnElement, and_, bindparam, case, func, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.errors import Deposed
from service.meta_store.engine import OnConnection
from service.meta_store.schema.core import leader_lease
from service.protocol.ids import Term

_HELD: Final = (
    select(leader_lease.c.term)
    .where(leader_lease.c.term == bindparam("term"))
    .with_for_update(read=True, key_share=True)
)


async def assert_term(connection: AsyncConnection, term: Term) -> None:
    """Lock the lease's row until the transaction ends. Raises Deposed where `term` is over.

    KEY SHARE conflicts only with an update that changes `term`, which is a unique key. So a take-over waits for this
    transaction, or commits first and makes this function raise. A renewal does not wait, so a slow transaction never
    costs a healthy leader its lease.
    """
    if (await connection.execute(_HELD, {"term": term})).first() is None:
        raise Deposed(term)


class PostgresLeases(OnConnection):
    """See `service.ports.meta_store.Leases`."""

    async def gain(self, holder: str, *, lease: timedelta) -> Term | None:
        """Renew the lease or take it over, in one statement. None where another holder's lease is running.

        An expired lease gets a new term, even where its last holder takes it.
        """
        return await self._put(holder, or_(leader_lease.c.holder == holder, ~_running()), lease)

    async def renew(self, holder: str, *, lease: timedelta) -> Term | None:
        """Do as `gain`, but only while the holder is the last one."""
        return await self._put(holder, leader_lease.c.holder == holder, lease)

    async def _put(self, holder: str, allowed: ColumnElement[bool], lease: timedelta) -> Term | None:
        clock = func.clock_timestamp()
        renewed = and_(leader_lease.c.holder == holder, _running())
        put = (
            update(leader_lease)
            .where(allowed)
            .values(
                term=case((renewed, leader_lease.c.term), else_=leader_lease.c.term + 1),
                holder=holder,
                expires_at=clock + literal(lease),
            )
            .returning(leader_lease.c.term)
        )
        term = (await self._connection.execute(put)).scalar()
        return None if term is None else Term(term)

    async def release(self, holder: str) -> None:
        """Make the holder's lease expire now."""
        ended = update(leader_lease).where(leader_lease.c.holder == holder).values(expires_at=func.clock_timestamp())
        await self._connection.execute(ended)

    async def held(self) -> bool:
        """Return whether any service holds an unexpired lease."""
        running = select(leader_lease.c.term).where(_running())
        return (await self._connection.execute(running)).first() is not None

    async def take(self) -> bool:
        """Take a running lease from its holder. Return whether there was one."""
        taken = update(leader_lease).where(_running()).values(holder="", expires_at=func.clock_timestamp())
        return (await self._connection.execute(taken)).rowcount > 0


def _running() -> ColumnElement[bool]:
    # clock_timestamp, not now(), because the update may have waited for a transaction that asserts the term.
    return leader_lease.c.expires_at > func.clock_timestamp()
