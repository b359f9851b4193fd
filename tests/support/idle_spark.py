"""A session of Spark that runs no job, for scans whose engines are stand-ins."""

from types import SimpleNamespace
from typing import Any


def idle_spark() -> Any:
    """Return a session on this machine."""
    scheduler = SimpleNamespace(numTotalJobs=lambda: 0)
    thread = SimpleNamespace(getState=lambda: SimpleNamespace(name=lambda: "WAITING"), interrupted=_ignored)
    threads = SimpleNamespace(currentThread=lambda: thread)
    return SimpleNamespace(
        _jvm=SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Thread=threads))),
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
        ),
    )


def _ignored(*_: object, **__: object) -> None:
    return
