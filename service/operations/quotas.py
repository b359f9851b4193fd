"""Apply the quotas of tenants (`service.domain.quotas`) to jobs and calls. `SELECT` applies that of results.

A quota of jobs holds across all services, a quota of calls in each service by itself.
"""

from collections.abc import Collection, Mapping
from functools import partial

from service.domain.errors import OverQuota, Unavailable
from service.domain.job import Job
from service.domain.parameters import SystemParameters
from service.domain.quotas import (
    FOLLOWERS_MAX,
    Bound,
    Quota,
    bound_of,
    plans_fit,
    too_long_plans,
    too_many_followers,
    too_many_jobs,
)
from service.domain.roles import Role
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.meta_store import Transaction
from service.ports.records import NewJob, NewSourceScan


async def check_jobs(world: Context, tx: Transaction, asker: Asker, new: Job) -> None:
    """Raise OverQuota if the tenant has too many unfinished jobs besides the new one, which `tx` has added.

    The job of a table takes no permit and does not count.
    """
    if asker.role is Role.ADMIN or not new.takes_permit:
        return
    bound = bound_of(SystemParameters.of(await tx.parameters.all()), asker.role, Quota.CREATING_JOBS)
    if bound is None:
        return
    others = [job for job in await tx.queue.unfinished_of(asker.actor) if job.id != new.id]
    if len(others) >= bound.value:
        raise counted(world, too_many_jobs(bound, asker.actor, others))


async def check_plans(tx: Transaction, new: NewJob, tenant: str) -> None:
    """Raise Invalid if the tenant's plans, with that of the new job, which `tx` has added, are too long (I13)."""
    held = await tx.queue.plan_bytes()
    if not plans_fit(tenant, held):
        raise too_long_plans(new.plan_bytes, tenant, held)


async def check_followers(tx: Transaction, asker: Asker, new: NewJob) -> None:
    """Raise Invalid if too many tables of the tenant, with the new one, follow one external table.

    Each change there is written once for each table, in one epoch with all others: 39 tables of one caller let a
    transaction of 100,000 rows hold up everybody for 35 s (I13).
    """
    if asker.role is Role.ADMIN:
        return
    for scan in (one for one in new.fragments if isinstance(one, NewSourceScan)):
        external = scan.cdc.external_schema, scan.cdc.external_table
        beside = [one.job for one in await tx.following.tables(scan.cdc.source.id) if one.external == external]
        own = [one for one in await tx.jobs.where(ids=beside) if one.created_by == asker.actor]
        if len(own) > FOLLOWERS_MAX:
            raise too_many_followers(".".join(external), asker.actor)


async def calls_bound(world: World, role: Role) -> Bound | None:
    """Return the quota of calls of a role, at most some seconds old. While it cannot be read, there is none."""
    if role is Role.ADMIN:
        return None
    _, parameters = await world.calls.parameters.get(None, partial(_read, world), world.clock.monotonic)
    return None if parameters is None else bound_of(parameters, role, Quota.CALLS)


def counted(world: Context, refusal: OverQuota) -> OverQuota:
    """Count a refusal in the metrics, and return it."""
    world.metrics.refused(refusal.quota)
    return refusal


async def _read(world: Context, _keys: Collection[None]) -> Mapping[None, SystemParameters]:
    try:
        async with world.stores.begin() as tx:
            return {None: SystemParameters.of(await tx.parameters.all())}
    except Unavailable:
        return {}
