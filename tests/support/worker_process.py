"""A real worker that the test starts itself, as a launcher elsewhere would."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.processes import signal_session
from tests.support.service import WORKER_TOKEN, Service


@dataclass
class WorkerProcess:
    """Runs while entered, `slots` tasks at once. `directory` is its own."""

    service: Service
    directory: Path
    name: str
    slots: int = 2

    def __enter__(self) -> Self:
        secrets = self.directory / "secrets"
        secrets.mkdir(parents=True)
        (secrets / "tidefill_worker_token").write_text(WORKER_TOKEN)
        (secrets / "tidefill_state_store_url").write_text(self.service.database_url())
        given = {
            "PYSPARK_PYTHON": sys.executable,
            "TIDEFILL_SERVICE_URL": self.service.url,
            "TIDEFILL_WORKER_ID": self.name,
            "TIDEFILL_SECRETS_DIR": str(secrets),
            "TIDEFILL_SPARK_MASTER": f"local[{self.slots}]",
            "SPARK_LOCAL_DIRS": str(self.directory),
        }
        with (self.directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers"],
                cwd=self.directory,
                env={**os.environ, **given},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the worker: driver, JVM and the tasks' own."""
        signal_session(self.process.pid, number)

    @property
    def is_registered(self) -> bool:
        """Whether the service knows it and hears of it."""
        return any(worker["worker"] == self.name for worker in self.service.workers())

    def log_text(self) -> str:
        """Return what it has logged."""
        return (self.directory / "log").read_text(errors="replace")
