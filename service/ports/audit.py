"""Describe who changes what."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from service.domain.cutting import KEPT_CHARACTERS
from service.domain.roles import Role


class Outcome(StrEnum):
    """`ACCEPTED`: the change was committed with the entry. `REFUSED`: the caller's role did not permit the call."""

    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class AuditedCall:
    """What the audit trail tells of a call.

    `route` is the template of the path, `target` the name or id of what the call is about. `statement` is a statement,
    or a body as JSON, and holds no secret. Only admins see a `discreet` call. `traceparent` is the W3C context of the
    call's own span, set while traces are made.
    """

    at: datetime
    method: str
    route: str
    target: str | None = None
    statement: str | None = None
    discreet: bool = False
    request_id: str | None = None
    trace_id: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Asker:
    """On whose authority an operation changes something. Without a call it is the service itself."""

    actor: str
    role: Role
    call: AuditedCall | None = None

    def saying(self, statement: str | None, target: str | None = None, *, discreet: bool = False) -> "Asker":
        """Return the asker with what its call says, cut to `KEPT_CHARACTERS`. Without a target, the path's stays."""
        if self.call is None:
            return self
        kept = None if statement is None else statement.strip()[:KEPT_CHARACTERS]
        return replace(
            self,
            call=replace(
                self.call,
                statement=kept,
                target=self.call.target if target is None else target[:KEPT_CHARACTERS],
                discreet=discreet or self.call.discreet,
            ),
        )


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry of the audit trail."""

    id: int
    at: datetime
    actor: str
    role: Role
    method: str
    route: str
    statement: str | None
    target: str | None
    outcome: Outcome
    request_id: str | None
    trace_id: str | None


def itself(name: str) -> Asker:
    """Return the service as an asker, for what it does on its own account."""
    return Asker(name, Role.ADMIN)
