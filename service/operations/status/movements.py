"""Read what moves: the history that scans read, and the rows of statements that several epochs publish."""

from service.domain.job import Job
from service.domain.progress import ScanProgress, fragment_text
from service.operations.status.listing import listed
from service.operations.status.models import FragmentProgress
from service.operations.world import World
from service.ports.status import StagedStatement


async def fragment_progress(world: World) -> list[FragmentProgress]:
    """Return the rows of `rw_fragment_backfill_progress`: the scans of unfinished jobs."""
    async with world.stores.begin() as tx:
        found = await listed(tx)
        scans = await tx.fragments.scans([job.id for job in found])
    return [_fragment_progress(job, scan) for job in found for scan in scans.get(job.id, ())]


async def staged_statements(world: World) -> list[StagedStatement]:
    """Return the statements whose rows are being published, oldest first."""
    async with world.stores.begin() as tx:
        return list(await tx.status.staged_statements())


def _fragment_progress(owner: Job, scan: ScanProgress) -> FragmentProgress:
    return FragmentProgress(
        job_id=owner.id,
        fragment_id=scan.fragment,
        job_name=f"public.{owner.name}",
        upstream_table_name=scan.upstream if scan.external else f"public.{scan.upstream}",
        progress=fragment_text(scan.rows, scan.total),
        rows=scan.rows,
        total=scan.total,
        rows_per_second=0.0 if scan.finished else scan.rate,
        finished=scan.finished,
        rate_limit=scan.rate_limit,
        waiting=scan.waiting,
        waits_for=scan.awaits,
    )
