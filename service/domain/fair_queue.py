"""Decide in which order queued jobs start: those of the tenants that asked for them alternate.

The next job is of the tenant with the fewest jobs that hold a permit, and among those of the tenant whose last start is
the longest ago. The jobs of one tenant start in the order in which they were asked for. So while a tenant waits and
holds no permit, each other tenant starts at most one job. A queued job reads created relations only, hence no job in
the queue depends on another one, and every order is possible.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from typing import Final

from service.protocol.ids import JobId

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Queued:
    """A job that waits for a permit. `tenant` is who asked for it, empty if that was not recorded."""

    job: JobId
    tenant: str


@dataclass(frozen=True, slots=True)
class Share:
    """How many permits a tenant holds, and when a job of the tenant last took one, None if never."""

    held: int = 0
    last: datetime | None = None


def start_order(queued: Iterable[Queued], shares: Mapping[str, Share]) -> list[JobId]:
    """Return the jobs in the order in which they start, if no permit is returned meanwhile.

    `queued` is in the order of asking. With one permit the order stays the same when it is returned.
    """
    lines: dict[str, deque[JobId]] = {}
    for one in queued:
        lines.setdefault(one.tenant, deque()).append(one.job)
    # (permits held, number of its last start here, time of its last start before, oldest job, tenant)
    fronts = [
        (share.held, 0, share.last or _NEVER, line[0], tenant)
        for tenant, line in lines.items()
        for share in (shares.get(tenant, Share()),)
    ]
    heapify(fronts)
    order: list[JobId] = []
    while fronts:
        held, _, last, job, tenant = heappop(fronts)
        order.append(job)
        line = lines[tenant]
        line.popleft()
        if line:
            heappush(fronts, (held + 1, len(order), last, line[0], tenant))
    return order
