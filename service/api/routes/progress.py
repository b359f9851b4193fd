"""`/v1/ddl-progress` and `/v1/fragment-backfill-progress`: the catalogs of those names, with numbers."""

from fastapi import APIRouter

from service.api.calling import Here
from service.operations import status
from service.operations.views import DdlProgress, FragmentProgress

router = APIRouter(prefix="/v1", tags=["progress"])


@router.get("/ddl-progress")
async def ddl_progress(world: Here) -> list[DdlProgress]:
    """Show every job that is queued or being created."""
    return await status.ddl_progress(world)


@router.get("/fragment-backfill-progress")
async def fragment_backfill_progress(world: Here) -> list[FragmentProgress]:
    """Show every scan of the jobs that are queued or being created."""
    return await status.fragment_progress(world)
