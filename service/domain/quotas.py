"""Define the quotas of tenants. A tenant is one caller: a token, or the subject of a JWT.

The quotas of a tenant are those of its role. Each is a system parameter, where 0 is no quota. Admins set the quotas and
have none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from service.domain.errors import Invalid, OverQuota
from service.domain.job import Job
from service.domain.parameters import SystemParameters
from service.domain.roles import Role

PLAN_BYTES_MAX: Final = 64 << 20
"""Maximum of bytes of all plans. The barrier that begins a generation carries them, and the service that leads parses
it in one go: seconds for so many. A tenant may have no more than what stays free, as of places (`domain.shares`).
"""
FOLLOWERS_MAX: Final = 4
"""How many tables of a tenant may follow one external table."""
_NAMED_MAX: Final = 5
"""How many jobs a refusal names."""


class Quota(StrEnum):
    """The things that a quota limits. The parameter's name is that of the role, an underscore, and this."""

    CREATING_JOBS = "creating_jobs_max"
    CALLS = "calls_max"
    RESULT_BYTES = "result_bytes_max"


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit, with the name of the parameter or variable that sets it."""

    name: str
    value: int


def bound_of(parameters: SystemParameters, role: Role, quota: Quota) -> Bound | None:
    """Return a quota of a role, or None if the role has no such quota."""
    name = f"{role}_{quota}"
    value = int(getattr(parameters, name, 0))
    return Bound(name, value) if value else None


def too_many_jobs(bound: Bound, tenant: str, jobs: Sequence[Job]) -> OverQuota:
    """Return the refusal of a CREATE of a tenant with these unfinished jobs."""
    named = [f"{job.name} (job {job.id}, {job.state})" for job in jobs[:_NAMED_MAX]]
    if len(jobs) > _NAMED_MAX:
        named.append(f"{len(jobs) - _NAMED_MAX} more")
    count = "1 job that is" if len(jobs) == 1 else f"{len(jobs)} jobs that are"
    return OverQuota(
        f"{tenant} has {count} queued or being created, and {bound.name} is {bound.value}: {', '.join(named)}."
        " Another CREATE is accepted once enough of them are created, have failed or are cancelled (CANCEL JOBS)",
        quota=bound.name,
        limit=bound.value,
        used=len(jobs),
    )


def plans_fit(tenant: str, held: Mapping[str, int]) -> bool:
    """Whether the tenant's plans leave as much free as they have, where tenants hold so many bytes."""
    return sum(held.values()) + held.get(tenant, 0) <= PLAN_BYTES_MAX


def too_long_plans(size: int, tenant: str, held: Mapping[str, int]) -> Invalid:
    """Return the refusal of a CREATE whose plan has `size` bytes, where tenants hold so many with it."""
    return Invalid(
        f"its plan has {size} bytes, all of {tenant or 'this caller'} have {held.get(tenant, 0)} with it, and those of"
        f" everybody {sum(held.values())}, of {PLAN_BYTES_MAX}: read fewer columns or branches, or drop other views and"
        " tables"
    )


def too_many_followers(external: str, tenant: str) -> Invalid:
    """Return the refusal of a CREATE TABLE .. FROM of a tenant with enough tables that follow an external table."""
    return Invalid(
        f"{tenant} has {FOLLOWERS_MAX} tables that follow {external}, and no more may do so: drop one, or make views"
        " over them"
    )


def too_many_calls(bound: Bound, tenant: str, calls: int) -> OverQuota:
    """Return the refusal of a call of a tenant with this many calls in progress."""
    count = "1 call" if calls == 1 else f"{calls} calls"
    return OverQuota(
        f"{tenant} has {count} in progress, and {bound.name} is {bound.value}: try again when one of them has ended",
        quota=bound.name,
        limit=bound.value,
        used=calls,
        retry_soon=True,
    )
