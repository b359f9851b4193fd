"""A standalone Spark cluster on loopback: a master and workers, each a process of its own."""

import os
import re
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark

from service.embedded.java import find_java
from tests.support.processes import name_of, parent_of, processes
from tests.support.waiting import until

_HOME: Final = Path(pyspark.__file__).parent
_LOOPBACK: Final = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_MASTER: Final = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
_REGISTERED: Final = "Successfully registered with master"
_QUICK: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a JVM that starts quickly."""
CONF: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.default.parallelism": "2",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(_QUICK),
    "spark.driver.extraJavaOptions": " ".join(_QUICK),
}
"""The settings of an application with two executors."""


@dataclass
class SparkCluster:
    """The processes of a cluster. Logs are in `directory`."""

    directory: Path
    master: str = ""
    workers: "list[subprocess.Popen[bytes]]" = field(default_factory=list["subprocess.Popen[bytes]"])
    _started: "list[subprocess.Popen[bytes]]" = field(default_factory=list["subprocess.Popen[bytes]"])

    def start(self, workers: int) -> None:
        """Start the master and workers of two cores each, and wait until these are registered."""
        self._run("master", "master.Master", _LOOPBACK)
        self.master = until(lambda: self._said("master", _MASTER), what=lambda: self.log("master"))
        for number in range(workers):
            name = f"worker-{number}"
            sized = ("--cores", "2", "--memory", "2g", "--work-dir", str(self.directory / name))
            self.workers.append(self._run(name, "worker.Worker", (*_LOOPBACK, *sized, self.master)))
        for number in range(workers):
            name = f"worker-{number}"
            until(lambda name=name: _REGISTERED in self.log(name), what=lambda name=name: self.log(name))

    def executors(self, worker: "subprocess.Popen[bytes]") -> Sequence[int]:
        """Return the process ids of a worker's executors."""
        return [pid for pid in processes() if parent_of(pid) == worker.pid and name_of(pid) == "java"]

    def log(self, name: str) -> str:
        """Return the log of a process."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def end(self) -> None:
        """End all processes: workers take their executors with them."""
        for process in reversed(self._started):
            process.terminate()
            process.wait()

    def _said(self, name: str, what: re.Pattern[str]) -> str | None:
        found = what.search(self.log(name))
        return found and found[1]

    def _run(self, name: str, main: str, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
        home = find_java(os.environ)
        java = "java" if home is None else str(home / "bin" / "java")
        small = ("-Xmx256m", *_QUICK, "-Dspark.master.rest.enabled=false")
        # Web interfaces listen at the local address. Spark's scripts would set the version of Scala.
        given = {**os.environ, "SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SCALA_VERSION": "2.13"}
        given |= {} if home is None else {"JAVA_HOME": str(home)}
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [java, "-cp", str(_HOME / "jars" / "*"), *small, f"org.apache.spark.deploy.{main}", *arguments],
                cwd=self.directory,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._started.append(process)
        return process


@contextmanager
def spark_cluster(directory: Path, workers: int) -> Generator[SparkCluster]:
    """Run a cluster in an empty directory."""
    cluster = SparkCluster(directory)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.end()
