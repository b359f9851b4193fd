"""Prepare an installation, once for all its workers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_COMMAND: Final = (sys.executable, "-m", "workers.preparation")


def prepare(java_home: Path | None) -> None:
    """Make the CDS archive (class data sharing) of the workers' JVM.

    Raises OSError with the reason if that fails. Workers also start without the archive, but more slowly.
    """
    environment = {**os.environ, **({} if java_home is None else {"JAVA_HOME": str(java_home)})}
    done = subprocess.run(  # noqa: S603 - our own program, no shell
        _COMMAND,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise OSError(done.stderr.strip().rsplit("\n", 1)[-1])
