"""`/v1/ddl-progress` and `/v1/fragment-backfill-progress`: the catalogs of those names, with numbers."""

from dataclasses import dataclass

from fastapi import APIRouter

from service.api.access import needs
from service.api.calling import Here
from service.domain.roles import Role
from service.operations.status import listing, movements
from service.operations.status.models import DdlProgress, FragmentProgress
from service.ports.statements import StagedStatement


@dataclass(frozen=True, slots=True)
class DdlProgressList:
    """Every job that is queued or being created, oldest first. `next` is null: the list is whole."""

    items: list[DdlProgress]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class FragmentProgressList:
    """Every scan of those jobs. `next` is null: the list is whole."""

    items: list[FragmentProgress]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class StagedStatementList:
    """Every statement whose rows are being published, oldest first. `next` is null: the list is whole."""

    items: list[StagedStatement]
    next: str | None = None


router = APIRouter(prefix="/v1", tags=["progress"])


@router.get("/ddl-progress", dependencies=needs(Role.VIEWER))
async def list_ddl_progress(world: Here) -> DdlProgressList:
    """Show every job that is queued or being created."""
    return DdlProgressList(await listing.ddl_progress(world))


@router.get("/fragment-backfill-progress", dependencies=needs(Role.VIEWER))
async def list_fragment_backfill_progress(world: Here) -> FragmentProgressList:
    """Show every scan of the jobs that are queued or being created."""
    return FragmentProgressList(await movements.fragment_progress(world))


@router.get("/staged-statements", dependencies=needs(Role.VIEWER))
async def list_staged_statements(world: Here) -> StagedStatementList:
    """Show every bulk load and INSERT .. SELECT whose rows are being published, with how many are."""
    return StagedStatementList(await movements.staged_statements(world))
