"""The audit trail: who changed what, and which calls were refused."""

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import Delete, delete, insert, not_, select

from service.domain.roles import Role
from service.meta_store.documents import printable
from service.meta_store.engine import OnConnection
from service.meta_store.schema.access import audit_entry
from service.ports.audit import Asker, AuditEntry, Outcome

KEPT: Final = 100_000
"""How many of the newest entries of each actor are kept: none fills the store, or removes those of others."""
_TRIM_EVERY: Final = 1_000
"""An actor is trimmed after so many entries on average: by chance, because others could take each thousandth number."""
_SHOWN: Final = select(audit_entry).order_by(audit_entry.c.id.desc())


class Audit(OnConnection):
    """The append-only audit trail."""

    async def add(self, asker: Asker, outcome: Outcome) -> None:
        """Add an entry for the asker's call, which must not be None. Now and then it deletes old ones of the actor."""
        call = asker.call
        assert call is not None, asker
        row = {
            "at": call.at,
            "actor": printable(asker.actor),
            "role": asker.role,
            "method": call.method,
            "route": call.route,
            "statement": None if call.statement is None else printable(call.statement),
            "target": None if call.target is None else printable(call.target),
            "outcome": outcome,
            "discreet": call.discreet,
            "request_id": call.request_id,
            "trace_id": call.trace_id,
        }
        await self._connection.execute(insert(audit_entry), row)
        if secrets.randbelow(_TRIM_EVERY) == 0:
            await self._connection.execute(_beyond(printable(asker.actor)))

    async def newest(
        self, *, before: int | None, limit: int, discreet: bool, actor: str | None = None, target: str | None = None
    ) -> Sequence[AuditEntry]:
        """Return the newest entries before the entry `before`, newest first; discreet ones only with `discreet`."""
        found = _SHOWN.limit(limit)
        if before is not None:
            found = found.where(audit_entry.c.id < before)
        if not discreet:
            found = found.where(not_(audit_entry.c.discreet))
        if actor is not None:
            found = found.where(audit_entry.c.actor == printable(actor))
        if target is not None:
            found = found.where(audit_entry.c.target == printable(target))
        return [
            AuditEntry(
                row.id,
                row.at,
                row.actor,
                Role(row.role),
                row.method,
                row.route,
                row.statement,
                row.target,
                Outcome(row.outcome),
                row.request_id,
                row.trace_id,
            )
            for row in await self._connection.execute(found)
        ]

    async def forget_older(self, than: datetime) -> None:
        await self._connection.execute(delete(audit_entry).where(audit_entry.c.at < than))


def _beyond(actor: str) -> Delete:
    """Return the statement that deletes the entries of an actor that are older than its `KEPT` newest."""
    own = select(audit_entry.c.id).where(audit_entry.c.actor == actor)
    oldest = own.order_by(audit_entry.c.id.desc()).offset(KEPT - 1).limit(1).scalar_subquery()
    # Another transaction may delete some of them at this moment, in any order.
    old = own.where(audit_entry.c.id < oldest).with_for_update(skip_locked=True)
    return delete(audit_entry).where(audit_entry.c.id.in_(old))
