"""Start and stop the one Spark session of a worker."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from workers.spark.gateway import JAVA_OPTIONS, start_gateway

_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_SOCKETS_IN_BYTES: Final = 106 - len("/.sock") - 37
"""Maximum length of the socket directory's path. Java accepts socket paths of 106 bytes, and each socket's file name is
a full stop, a UUID and `.sock`.
"""
_NO_RULES: Final = (
    "ConstantPropagation",
    "FoldablePropagation",
    "PropagateEmptyRelation",
    "PruneFilters",
    "PushFoldableIntoBranches",
    "ReorderAssociativeOperator",
    "ReorderJoin",
    "SimplifyConditionals",
)
"""Rules that Spark's optimizer leaves out. `a + (b + 1)` stays as it is written: in another order a sum may not fit its
type. And history is read even if no row can count, because its readers tell how far they came. Joins stay in the order
that was chosen for them, because Spark would take what lets a task end (`workers.spark.killable`) out of them. No
constant takes the place of a column, because Spark computes calls of constants while it plans, where nothing ends it
(`service.sql.queries.folding`).
"""
CONF: Final[Mapping[str, str]] = {
    # Loopback TCP buffers hold many more rows in flight than fit a slice. Unix domain sockets cut the flush to a
    # quarter.
    _SOCKETS: "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    # Spark remembers what ended for its pages, which nobody opens here. A thousand plans fill the memory of a JVM.
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.retainedJobs": "1",
    "spark.ui.retainedStages": "1",
    "spark.ui.retainedTasks": "1",
    "spark.locality.wait": "0",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "workers.spark.daemon",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Names follow Postgres, where "a" and "A" differ.
    "spark.sql.caseSensitive": "true",
    # A numeric without room for its digits is an error, and is never rounded to fit.
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{one}" for one in _NO_RULES
    ),
    # Spark would search what follows from a condition, in time exponential in the names of its columns (I13).
    "spark.sql.constraintPropagation.enabled": "false",
    # The text of users' views runs here: no variable substitution, no reading of files by path.
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.legacy.allowUntypedScalaUDF": "false",
    # Spark takes a whole page of memory, up to 64 MB of them, for each small table that it sends to all tasks. A stage
    # of many inputs sends dozens in an epoch.
    "spark.buffer.pageSize": "1m",
    # Each of these threads keeps the last table that it has sent for a minute.
    "spark.sql.broadcastExchange.maxThreadThreshold": "16",
    # A task that lacks memory fails alone: a view of one caller ended the worker of all (I13). See `_exits_if_broken`.
    "spark.executor.killOnFatalError.depth": "0",
    "spark.driver.memory": "1g",
    JAVA_OPTIONS: "-XX:+UseParallelGC",
    "spark.scheduler.mode": "FAIR",
}

_ONCE: Final[Mapping[str, str]] = {
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.ignoreDecommissionFetchFailure": "false",
    "spark.speculation": "false",
}
"""One attempt only: a failed task fails the epoch, and recovery repeats it. No setting of a user changes this, because
tasks write (I3). Spark itself repeats tasks of a lost executor: see `workers.spark.frames.task_of`.
"""
_LOOPBACK: Final[Mapping[str, str]] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_LOCAL: Final = re.compile(r"local\[(?P<threads>\*|\d+)\]")

OWN_AT_ONCE: Final = 8
"""How many created jobs in graphs of their own Spark computes at a time, of all callers together."""
_EXIT_SECONDS: Final = 5.0
"""How long a JVM that has stopped its session may take to exit."""
_OUT_OF_MEMORY: Final = 52
"""Exit code of Spark's JVM after it ran out of memory: `org.apache.spark.util.SparkExitCode.OOM`."""


@dataclass
class Session:
    """A running Spark session. `ended` is set when its JVM has exited: it cannot run anything any more."""

    spark: SparkSession
    folder: Path
    """The session's temporary files."""
    gateway: "subprocess.Popen[bytes]"
    local: bool
    """Whether its own JVM runs the tasks, and no executors of a cluster."""
    ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread(target=self._watch, daemon=True, name="jvm").start()

    @property
    def out_of_memory(self) -> bool:
        """Whether the JVM exited because it ran out of memory. A JVM that was killed blames no job (I3)."""
        return self.gateway.returncode == _OUT_OF_MEMORY

    def _watch(self) -> None:
        self.gateway.wait()
        self.ended.set()

    def lost(self, seconds: float) -> bool:
        """Whether the session cannot run anything any more: its JVM exits within `seconds`, or the cluster has ended
        the application. The JVM lives on then.
        """
        if self.ended.wait(seconds):
            return True
        lost = self._is_stopped()
        if lost and self.local:
            # Its exit code tells why.
            self.ended.wait(_EXIT_SECONDS)
        return lost

    def _is_stopped(self) -> bool:
        context: Any = self.spark.sparkContext._jsc  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        try:
            return bool(context.sc().isStopped())
        except (Py4JError, OSError):
            return True

    @property
    def parallelism(self) -> int:
        """How many tasks of one graph run at once. A local Spark has more task slots."""
        return self.spark.sparkContext.defaultParallelism

    def stop(self) -> None:
        """End the session and its JVM, and remove its temporary files."""
        if not self.ended.is_set():
            self.spark.stop()
        assert self.gateway.stdin is not None
        self.gateway.stdin.close()
        self.gateway.wait(timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)


def start(master: str, extra: Mapping[str, str]) -> Session:
    """Start Spark. Raises FileNotFoundError if there is no Java."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    master, placed = _placed(master, root)
    folder = Path(tempfile.mkdtemp(prefix="spark-"))
    conf = {**CONF, **placed, "spark.sql.warehouse.dir": str(folder / "warehouse"), **extra, **_ONCE}
    # SparkSubmit prepares what a cluster's manager needs.
    conf["spark.master"] = master
    if len(os.fsencode(folder)) > _SOCKETS_IN_BYTES:
        conf[_SOCKETS] = "false"
    # This is also the directory of Spark's artifacts and sockets.
    conf[JAVA_OPTIONS] += " " + shlex.quote(f"-Djava.io.tmpdir={folder}")
    gateway = start_gateway(conf, folder / "connection")
    builder = SparkSession.builder.master(master).appName("tidefill")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _exits_if_broken(spark)
    return Session(spark, folder, gateway, local=_LOCAL.fullmatch(master) is not None)


def _exits_if_broken(spark: SparkSession) -> None:
    """Have the JVM exit when one of its own threads ends for lack of memory. Those of tasks go on with other tasks."""
    java: Any = spark.sparkContext._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    handler = java.org.apache.spark.util.SparkUncaughtExceptionHandler(False)
    java.java.lang.Thread.setDefaultUncaughtExceptionHandler(handler)


def _placed(master: str, root: str) -> tuple[str, Mapping[str, str]]:
    """Return the master and the settings that depend on it. `root` is the directory of this code.

    A local Spark gets many times as many task slots as its parallelism: for the database graph, for a snapshot job, and
    for the created jobs in graphs of their own. None of them then waits for the slots of another one (I10, I13), and
    the operating system divides the processors among the threads. A cluster manages its own slots. Its executors
    connect to the driver, and find this code at the same path.
    """
    found = _LOCAL.fullmatch(master)
    if found is None:
        return master, {"spark.executorEnv.PYTHONPATH": root}
    parallelism = os.cpu_count() or 1 if found["threads"] == "*" else int(found["threads"])
    return f"local[{(2 + OWN_AT_ONCE) * parallelism}]", {**_LOOPBACK, "spark.default.parallelism": str(parallelism)}
