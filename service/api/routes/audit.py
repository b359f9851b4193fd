"""`/v1/audit`: who changed what, and which calls were refused for want of a role."""

from typing import Annotated

from fastapi import APIRouter, Query

from service.api.access import AskedBy, needs
from service.api.calling import Here, Limit
from service.domain.roles import Role, permits
from service.operations import auditing
from service.protocol.ids import BIGINT_MAX

router = APIRouter(prefix="/v1", tags=["access"])

Word = Annotated[str | None, Query(min_length=1, max_length=2000)]


@router.get("/audit", dependencies=needs(Role.VIEWER))
async def list_audit_entries(
    world: Here,
    asked_by: AskedBy,
    limit: Limit = 100,
    before: Annotated[int | None, Query(ge=0, le=BIGINT_MAX, description="`next` of the page before")] = None,
    actor: Word = None,
    target: Word = None,
) -> auditing.AuditPage:
    """List the audit trail, newest first, of one actor or about one target if given. Only admins see the entries of
    secrets and tokens.
    """
    discreet = permits(asked_by.role, Role.ADMIN)
    return await auditing.entries(world, limit=limit, before=before, discreet=discreet, actor=actor, target=target)
