"""The audit trail, newest first: who changed what, and what was refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.operations import auditing
from service.pages.asking import Ask
from service.ports.audit import AuditEntry

SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class Audit:
    """A page of entries. `before` is the cursor of the next page, None on the last one."""

    rows: Sequence[AuditEntry]
    actor: str
    target: str
    before: str | None
    moves: bool = False


async def read(ask: Ask) -> Audit:
    """Read one page. Only admins see the entries of secrets and tokens."""
    actor, target = ask.text("actor"), ask.text("target")
    found = await auditing.entries(
        ask.world,
        limit=SHOWN,
        before=ask.number("before"),
        discreet=ask.admin,
        actor=actor or None,
        target=target or None,
    )
    return Audit(found.items, actor, target, found.next)
