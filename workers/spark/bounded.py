"""Count the jobs of Spark, and bound how long jobs and their plans may take: everybody waits for them (I13).

Spark's own means end a job only while its tasks run. While it analyzes, optimizes or generates code, nothing ends it,
and some plans take years. Such a thread of the JVM is stopped.
"""

import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from workers.state_store.port import PlanTooLongError, TooSlowError

_TAG: Final = "tidefill-bounded-{}"
_AGAIN_SECONDS: Final = 1.0
PLANNING_SECONDS: Final = 60
"""For so long one plan may be made without a break, also where its jobs may take as long as they like."""
STOPPED_FROM: Final = 4
"""A plan is stopped after so many seconds at least: most end by themselves, after which the job is cancelled."""
_PLANNER: Final = "org.apache.spark.sql.catalyst."
_LOADING: Final = ("<clinit>", "java.lang.Class", "java.lang.invoke.MethodHandleNatives")
"""A class that is stopped while it is loaded or initialized could not be used any more."""

log = structlog.get_logger("spark")


def jobs_begun(spark: SparkSession) -> int:
    """Return how many jobs Spark has begun, those of all threads."""
    context: Any = spark.sparkContext._jsc  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - no public way
    return int(context.sc().dagScheduler().numTotalJobs())


@contextmanager
def bounded_jobs(
    spark: SparkSession, limit_ms: int, seconds: float | None, wanted: Callable[[], bool] = lambda: True
) -> Generator[None]:
    """Cancel the jobs and plans of this thread that still run after so many seconds, and raise TooSlowError. None: any.

    The same happens when they are not `wanted` any more, which is asked about once a second, and when Spark plans for
    `PLANNING_SECONDS`. `limit_ms` is the parameter that users know (`stage_timeout_ms`).
    """
    context, tag = spark.sparkContext, _TAG.format(threading.get_ident())
    over, late = threading.Event(), threading.Event()
    planner = _Planner.of(spark)

    def watch() -> None:
        ends = _monotonic() + (math.inf if seconds is None else seconds)
        while not over.wait(_AGAIN_SECONDS if late.is_set() else min(max(ends - _monotonic(), 0), _AGAIN_SECONDS)):
            try:
                planner.look()
                if late.is_set() or _monotonic() >= ends or planner.seconds >= PLANNING_SECONDS or not wanted():
                    late.set()
                    planner.stop()
                    # A job that begins just now is cancelled by the next call.
                    context.cancelJobsWithTag(tag)
            except Py4JError:
                log.exception("spark.watch_failed")  # The plan may have filled the memory. The next call may succeed.

    context.setInterruptOnCancel(True)
    context.addJobTag(tag)
    threading.Thread(target=watch, name="bounded-jobs", daemon=True).start()
    try:
        yield
    except Exception as error:
        if late.is_set():
            # A thread that was stopped counts as interrupted, and its next job would fail.
            planner.thread.interrupted()
            raise (PlanTooLongError(PLANNING_SECONDS) if planner.endless else TooSlowError(limit_ms)) from error
        raise
    finally:
        over.set()
        context.removeJobTag(tag)


@dataclass
class _Planner:
    """The thread of the JVM that makes the plans of a thread of Python."""

    jvm: Any
    thread: Any
    since: float | None = field(default=None, init=False)
    """Since when each look, one a second, has found it making a plan."""
    endless: bool = field(default=False, init=False)
    """Whether it was stopped after `PLANNING_SECONDS`."""

    @classmethod
    def of(cls, spark: SparkSession) -> "_Planner":
        """Return that of this thread. PySpark pins each thread to one of the JVM."""
        jvm: Any = spark._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - no public way
        return cls(jvm, jvm.java.lang.Thread.currentThread())

    def look(self) -> None:
        """Look whether it makes a plan. While it waits for a job, it waits; between two calls, it has no such frame."""
        self.since = (self.since or _monotonic()) if _PLANNER in self._stack() else None

    @property
    def seconds(self) -> float:
        """For how long it has made one plan. The looks are slow where the plan fills the heap."""
        return 0 if self.since is None else _monotonic() - self.since

    def stop(self) -> None:
        """End the plan that it makes, if it makes one for long. Its locks are released on the way.

        While it loads a class, the next look decides.
        """
        stack = self._stack() if self.seconds >= STOPPED_FROM else ""
        if not stack or any(one in stack for one in _LOADING):
            return
        log.warning("spark.plan_stopped", seconds=round(self.seconds))
        self.endless = self.seconds >= PLANNING_SECONDS
        try:
            self.thread.stop()
        except Py4JError:
            log.exception("spark.plan_not_stopped")  # From Java 20 on no thread ends another.

    def _stack(self) -> str:
        """Return its frames if it computes, otherwise nothing. One call for all of them: each waits for a collection of
        garbage where the plan fills the heap.
        """
        if self.thread.getState().name() != "RUNNABLE":
            return ""
        return str(self.jvm.org.apache.commons.lang3.ArrayUtils.toString(self.thread.getStackTrace()))


def _monotonic() -> float:
    return time.monotonic()  # noqa: TID251 - how long jobs may take
