"""Say in words which engine reads history and which follows changes."""

from typing import Final

from service.protocol.barrier import ScanLimits
from service.protocol.stage import Engine

SINK_ENGINE: Final = "stage_engine is store, and Spark computes what a target outside gets"
"""What a session is told whose choice of an engine has no effect."""


def engines(limits: ScanLimits, engine: Engine | None, why: str, *, alone: bool = True) -> tuple[str, str]:
    """Return what reads history and what follows changes, and why. No engine: it depends on the rows.

    `alone`: a changed row concerns no other row of what is read.
    """
    if engine is not None:
        return f"{engine}, because {why}", f"{engine}, because {why}"
    history, changes = limits.spark_history_rows, limits.spark_changes_rows
    large = f"spark from {changes} changed rows of an epoch on, store below"
    return (
        f"spark from {history} rows on, store below: jobs of Spark would take longer than the rows",
        large if alone else "store, which looks up the rows that a change concerns",
    )
