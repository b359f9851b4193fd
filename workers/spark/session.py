"""The one Spark session of a worker: started, warmed, stopped.

A JRE without the module `jdk.incubator.vector` (that of the embedded wheel) is refused by Spark's own launcher, which
always adds it; there the gateway is started here, without the flag, and PySpark is pointed at it.
"""

import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

CONF: Final[Mapping[str, str]] = {
    # Loopback TCP buffers hold far more rows in flight than a slice wants: sockets of the machine cut the flush to a
    # quarter.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    "spark.locality.wait": "0",
    # One attempt: a failed task fails the epoch, and recovery does the rest.
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.speculation": "false",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "workers.spark.daemon",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # A view's text runs in here: no substitution, no files by path.
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.legacy.allowUntypedScalaUDF": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.scheduler.mode": "FAIR",
}

_LOCAL: Final = re.compile(r"local\[(?P<threads>\*|\d+)\]")


@dataclass
class Session:
    """A running Spark session. `ended` is set when its JVM is gone: it runs nothing more."""

    spark: SparkSession
    gateway: "subprocess.Popen[bytes] | None" = None
    ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread(target=self._watch, daemon=True, name="jvm").start()

    def _watch(self) -> None:
        jvm = self.gateway or getattr(self.spark.sparkContext, "_gateway").proc  # noqa: B009 - no public way to it
        jvm.wait()
        self.ended.set()

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""
        return self.spark.sparkContext.defaultParallelism

    def stop(self) -> None:
        """End the session and its JVM."""
        if not self.ended.is_set():
            self.spark.stop()
        if self.gateway is not None and self.gateway.stdin is not None:
            self.gateway.stdin.close()
            self.gateway.wait(timeout=30)


def start(master: str, extra: Mapping[str, str]) -> Session:
    """Start Spark. Raises what PySpark raises when there is no Java."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    master, slots = _with_room(master)
    conf = {**CONF, **slots, "spark.sql.warehouse.dir": _directory("warehouse"), **extra}
    gateway = None if _has_vector_module() else _start_gateway(conf)
    builder = SparkSession.builder.master(master).appName("tidefill")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return Session(spark, gateway)


def _directory(purpose: str) -> str:
    """Make a directory beside Spark's own, which whoever started the worker removes with it."""
    beside = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    Path(beside).mkdir(parents=True, exist_ok=True)
    return tempfile.mkdtemp(prefix=f"tidefill-{purpose}-", dir=beside)


def _with_room(master: str) -> tuple[str, Mapping[str, str]]:
    """Give a local Spark twice the task slots of its parallelism: the database graph never waits for the slots of
    snapshot jobs; on what processors there are the system shares the threads out (I10). A cluster has its own ways.
    """
    found = _LOCAL.fullmatch(master)
    if found is None:
        return master, {}
    parallelism = os.cpu_count() or 1 if found["threads"] == "*" else int(found["threads"])
    return f"local[{2 * parallelism}]", {"spark.default.parallelism": str(parallelism)}


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def _has_vector_module() -> bool:
    """Whether Spark's own launcher will do. Without any Java it says so itself, in better words than ours."""
    try:
        listed = subprocess.run([_java(), "--list-modules"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return True
    return "jdk.incubator.vector" in listed


def _start_gateway(conf: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start SparkSubmit for PySpark ourselves; PySpark connects to it through the two variables."""
    folder = Path(_directory("gateway"))
    info = folder / "connection"
    home = Path(pyspark.__file__).parent
    command = [
        _java(),
        "-cp",
        f"{home / 'jars'}{os.sep}*",
        f"-Xmx{conf['spark.driver.memory']}",
        *conf["spark.driver.extraJavaOptions"].split(),
        *_OPENED,
        "org.apache.spark.deploy.SparkSubmit",
        *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
        "pyspark-shell",
    ]
    environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info), "SPARK_HOME": str(home)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)  # noqa: S603
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = _connection(process, info)
    return process


def _connection(process: "subprocess.Popen[bytes]", info: Path) -> tuple[str, str]:
    """Wait for the file in which the JVM says its port (4 bytes) and secret (length and text), written in one move."""
    while not info.exists():
        if process.poll() is not None:
            msg = f"the Java gateway ended with code {process.returncode} before it was ready"
            raise RuntimeError(msg)
        time.sleep(0.05)  # noqa: TID251 - a foreign process writes a file: there is no signal to wait on
    content = info.read_bytes()
    (length,) = struct.unpack(">i", content[4:8])
    return str(struct.unpack(">i", content[:4])[0]), content[8 : 8 + length].decode()


_OPENED: Final = tuple(
    f"--add-opens={module}=ALL-UNNAMED"
    for module in (
        "java.base/java.lang",
        "java.base/java.lang.invoke",
        "java.base/java.lang.reflect",
        "java.base/java.io",
        "java.base/java.net",
        "java.base/java.nio",
        "java.base/java.util",
        "java.base/java.util.concurrent",
        "java.base/java.util.concurrent.atomic",
        "java.base/jdk.internal.ref",
        "java.base/sun.nio.ch",
        "java.base/sun.nio.cs",
        "java.base/sun.security.action",
        "java.base/sun.util.calendar",
    )
)
