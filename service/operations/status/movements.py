"""Read what moves: the history that scans read, and the rows of statements that several epochs publish."""

from service.domain.job import Job
from service.domain.progress import ScanProgress, fragment_text
from service.operations.status.listing import listed
from service.operations.status.models import FragmentProgress
from service.operations.world import Context
from service.ports.statements import StagedStatement


async def fragment_progress(world: Context) -> list[FragmentProgress]:
    """Return the rows of `rw_fragment_backfill_progress`: the scans of unfinished jobs, and the inputs that a stage
    looks up. Those are complete from the start, because no history of them is read in pages.
    """
    async with world.stores.begin() as tx:
        found = await listed(tx)
        jobs = [job.id for job in found]
        scans, lookups = await tx.fragments.scans(jobs), await tx.status.lookups(jobs)
    return [
        one
        for job in found
        for scan in scans.get(job.id, ())
        for one in (_scanned(job, scan), *(_looked_up(job, scan, name) for name in lookups.get(scan.fragment, ())))
    ]


async def staged_statements(world: Context) -> list[StagedStatement]:
    """Return the statements whose rows are being published, oldest first."""
    async with world.stores.begin() as tx:
        return list(await tx.staging_tables.publishing())


def _scanned(owner: Job, scan: ScanProgress) -> FragmentProgress:
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
        kind="scan",
    )


def _looked_up(owner: Job, scan: ScanProgress, name: str) -> FragmentProgress:
    return FragmentProgress(
        job_id=owner.id,
        fragment_id=scan.fragment,
        job_name=f"public.{owner.name}",
        upstream_table_name=f"public.{name}",
        progress=fragment_text(0, 0),
        rows=0,
        total=0,
        rows_per_second=0.0,
        finished=True,
        rate_limit=None,
        waiting=False,
        waits_for=(),
        kind="lookup",
    )
