"""Count the jobs of Spark, and bound how long those may take that compute changes: everybody waits for them (I13)."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

from workers.state_store.port import TooSlowError

_TAG: Final = "tidefill-bounded-{}"
_AGAIN_SECONDS: Final = 1.0


def jobs_begun(spark: SparkSession) -> int:
    """Return how many jobs Spark has begun, those of all threads."""
    context: Any = spark.sparkContext._jsc  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - no public way
    return int(context.sc().dagScheduler().numTotalJobs())


@contextmanager
def bounded_jobs(
    spark: SparkSession, limit_ms: int, seconds: float | None, wanted: Callable[[], bool] = lambda: True
) -> Generator[None]:
    """Cancel the jobs of this thread that still run after so many seconds, and raise TooSlowError. None: any.

    The same happens when they are not `wanted` any more, which is asked about once a second. `limit_ms` is the
    parameter that users know (`stage_timeout_ms`).
    """
    if seconds is None:
        yield
        return
    context, tag = spark.sparkContext, _TAG.format(threading.get_ident())
    over, late = threading.Event(), threading.Event()

    def watch() -> None:
        ends = _monotonic() + seconds
        while not over.wait(_AGAIN_SECONDS if late.is_set() else min(max(ends - _monotonic(), 0), _AGAIN_SECONDS)):
            if late.is_set() or _monotonic() >= ends or not wanted():
                late.set()
                # A job that begins just now is cancelled by the next call.
                context.cancelJobsWithTag(tag)

    context.setInterruptOnCancel(True)
    context.addJobTag(tag)
    threading.Thread(target=watch, name="bounded-jobs", daemon=True).start()
    try:
        yield
    except Exception as error:
        if late.is_set():
            raise TooSlowError(limit_ms) from error
        raise
    finally:
        over.set()
        context.removeJobTag(tag)


def _monotonic() -> float:
    return time.monotonic()  # noqa: TID251 - how long jobs may take
