"""Verifications that a page has begun. They may take minutes, so that the browser does not wait for their answer.

They are kept in the memory of this process: at most `VERIFICATIONS_MAX`, of each job and caller the last one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from service.domain.errors import MetaError
from service.pages.bounded import Bounded
from service.protocol.ids import JobId
from service.protocol.request import Verified
from service.telemetry.log import logger

log = logger("pages")
VERIFICATIONS_MAX: Final = 200


@dataclass(slots=True)
class Verification:
    """A verification: it runs, has a result, or has failed with an error."""

    began_at: datetime
    by: str
    found: Verified | None = None
    error: str | None = None

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.found is None and self.error is None


class Verifications:
    """The verifications of this process."""

    def __init__(self) -> None:
        self._kept: Bounded[Verification] = Bounded(VERIFICATIONS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, job: JobId, by: str) -> Verification | None:
        """Return the last verification of a job by a caller, or else by another one."""
        return self._kept.get(f"{job} {by}") or self._kept.newest(f"{job} ")

    def begin(self, job: JobId, by: str, now: datetime, verify: Callable[[], Awaitable[Verified]]) -> bool:
        """Begin a verification, unless one of the job by this caller runs already. Return whether it has begun.

        That of another caller may wait in its turn for half an hour.
        """
        key = f"{job} {by}"
        if (last := self._kept.get(key)) is not None and last.runs:
            return False
        begun = Verification(now, by)
        self._kept.put(key, begun, owner=by)
        task = asyncio.create_task(_run(begun, verify))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True


async def _run(begun: Verification, verify: Callable[[], Awaitable[Verified]]) -> None:
    try:
        begun.found = await verify()
    except MetaError as error:
        begun.error = error.message
    except asyncio.CancelledError:
        begun.error = "the service stopped"
        raise
    except Exception:
        log.exception("verification.broke")
        begun.error = "the service failed; its log says why"
