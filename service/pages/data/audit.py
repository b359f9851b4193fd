"""The audit trail, newest first: who changed what, and what was refused."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.operations import auditing
from service.operations.status import history
from service.pages.asking import Ask
from service.ports.audit import AuditEntry
from service.protocol.ids import BIGINT_MAX, JobId

SHOWN: Final = 100
JOBS_SHOWN: Final = 10
"""How many jobs of one entry are named."""
_ABOUT_JOBS: Final = re.compile(r"/jobs/(\{job\}|act)")
_CANCELS: Final = re.compile(r"\s*cancel\s+jobs?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Row:
    """An entry. `jobs` are the first jobs that it names by number, with the names of their relations. A name is None if
    the job does not exist. `more`: it names others.
    """

    entry: AuditEntry
    jobs: tuple[tuple[JobId, str | None], ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Audit:
    """A page of entries. `before` is the cursor of the next page, None on the last one."""

    rows: Sequence[Row]
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
    jobs = [jobs_of(one) for one in found.items]
    names = await history.job_names(ask.world, {job for each in jobs for job in each[:JOBS_SHOWN]})
    rows = [
        Row(one, tuple((job, names.get(job)) for job in each[:JOBS_SHOWN]), len(each) > JOBS_SHOWN)
        for one, each in zip(found.items, jobs, strict=True)
    ]
    return Audit(rows, actor, target, found.next)


def jobs_of(entry: AuditEntry) -> Sequence[JobId]:
    """Return the jobs that an entry names by number. Numbers of other calls are those of scans or clean-ups."""
    if not (_ABOUT_JOBS.search(entry.route) or _CANCELS.match(entry.statement or "")):
        return ()
    texts = (entry.target or "").split(", ")
    if not all(text.isascii() and text.isdigit() for text in texts):
        return ()
    return [JobId(int(text)) for text in texts if int(text) <= BIGINT_MAX]
