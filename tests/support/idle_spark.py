"""A session of Spark that runs no job, for scans whose engines are stand-ins."""

from types import SimpleNamespace
from typing import Any


def idle_spark() -> Any:
    """Return a session on this machine."""
    scheduler = SimpleNamespace(numTotalJobs=lambda: 0)
    return SimpleNamespace(
        sparkContext=SimpleNamespace(
            master="local[2]",
            defaultParallelism=2,
            setLocalProperty=_ignored,
            setJobGroup=_ignored,
            cancelJobGroup=_ignored,
            addJobTag=_ignored,
            cancelJobsWithTag=_ignored,
            removeJobTag=_ignored,
            setInterruptOnCancel=_ignored,
            _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(dagScheduler=lambda: scheduler)),
        )
    )


def _ignored(*_: object, **__: object) -> None:
    return
