"""A session of Spark that runs no job, for scans whose engines are stand-ins."""

from typing import Any
from unittest.mock import MagicMock


def idle_spark() -> Any:
    """Return a session on this machine."""
    session = MagicMock()
    session.sparkContext.master = "local[2]"
    return session
