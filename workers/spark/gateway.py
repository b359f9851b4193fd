"""Start the JVM of a session, and connect PySpark to it.

Spark's own launcher is not used. It starts another JVM first, only to print the command. It also always adds the module
`jdk.incubator.vector`, which the Java of the embedded wheel lacks.

Half of a JVM's start time is spent on loading Spark's classes. A CDS archive (class data sharing, JEP 310) for this
Java and these jars lets the JVM map them instead; `lay_out` makes it. A JVM ignores an archive that does not fit.
"""

import hashlib
import os
import shlex
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_MEMORY: Final = "spark.driver.memory"
_CLASS_PATH: Final = "spark.driver.extraClassPath"
_CONF_DIRS: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
SPARK: Final = Path(pyspark.__file__).parent
"""The directory of Spark."""


def start_gateway(conf: Mapping[str, str], info: Path) -> "subprocess.Popen[bytes]":
    """Start SparkSubmit for PySpark, which finds it by two environment variables.

    The JVM writes its port and secret to `info`. Raises FileNotFoundError if there is no Java.
    """
    command = [
        *jvm(conf),
        f"-Xmx{conf[_MEMORY]}",
        *_OPTIONS,
        *shlex.split(conf[JAVA_OPTIONS]),
        "org.apache.spark.deploy.SparkSubmit",
        *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
        "pyspark-shell",
    ]
    environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info), "SPARK_HOME": str(SPARK)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)  # noqa: S603 - no shell
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = _connection(process, info)
    return process


def jvm(conf: Mapping[str, str]) -> list[str]:
    """Return the command of a JVM with Spark's classes, from the CDS archive if there is one."""
    classes = laid_out(conf)
    archived = (f"-XX:SharedArchiveFile={classes}",) if classes.exists() else ()
    return [_java(), "-cp", _class_path(conf), *archived]


def laid_out(conf: Mapping[str, str]) -> Path:
    """Return the path of the CDS archive for the Java of this environment, whether it exists or not. It is in
    `share/tidefill` of the Python environment.
    """
    java = os.path.realpath(shutil.which(_java()) or _java())
    known = hashlib.sha256("\n".join((java, _class_path(conf))).encode()).hexdigest()[:16]
    return Path(sys.prefix) / "share" / "tidefill" / f"spark-{known}.jsa"


def lay_out(conf: Mapping[str, str], listed: Path) -> Path:
    """Make the CDS archive of the classes that a session has `listed`; return its path.

    Raises OSError if the file cannot be written, CalledProcessError if this Java cannot make an archive.
    """
    target = laid_out(conf)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(f".{os.getpid()}")
    try:
        command = [_java(), "-cp", _class_path(conf), f"-Xmx{conf[_MEMORY]}", *_OPTIONS, "-XX:+UseParallelGC"]
        dump = ["-Xshare:dump", f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={unfinished}"]
        subprocess.run([*command, *dump], check=True, capture_output=True, text=True)  # noqa: S603 - no shell
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def listing(listed: Path) -> str:
    """Return the Java options of a session that writes the names of the classes it loads to `listed`."""
    return f"-XX:+UseParallelGC -Xshare:off -XX:DumpLoadedClassList={shlex.quote(str(listed))}"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def _class_path(conf: Mapping[str, str]) -> str:
    given = (conf.get(_CLASS_PATH), *map(os.environ.get, _CONF_DIRS), str(SPARK / "jars" / "*"))
    return os.pathsep.join(filter(None, given))


def _connection(process: "subprocess.Popen[bytes]", info: Path) -> tuple[str, str]:
    """Wait for the file with the JVM's port (4 bytes) and secret (length and text); the JVM writes it in one move."""
    while not info.exists():
        if process.poll() is not None:
            msg = f"the Java gateway ended with code {process.returncode} before it was ready"
            raise RuntimeError(msg)
        time.sleep(0.05)  # noqa: TID251 - a foreign process writes a file: there is no signal to wait on
    content = info.read_bytes()
    (length,) = struct.unpack(">i", content[4:8])
    return str(struct.unpack(">i", content[:4])[0]), content[8 : 8 + length].decode()


# The same as in `org.apache.spark.launcher.JavaModuleOptions`.
_OPTIONS: Final = (
    *(
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
    ),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
)
