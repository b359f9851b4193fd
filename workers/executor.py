"""`python -m workers.executor`: the entry point of a pod in which a Spark executor runs.

Spark describes the executor in variables. Its own images have a script that reads them, and PySpark's package has none.
"""

import os
import re
from collections.abc import Mapping
from typing import Final

from workers.spark.gateway import SPARK, jvm

_BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION: Final = re.compile(r"SPARK_JAVA_OPT_(\d+)")


def command(given: Mapping[str, str]) -> list[str]:
    """Return the command of the executor that the variables describe. Raises KeyError if one is missing."""
    options = {int(found[1]): value for name, value in given.items() if (found := _OPTION.fullmatch(name))}
    memory = given["SPARK_EXECUTOR_MEMORY"]
    described = {
        "--driver-url": "SPARK_DRIVER_URL",
        "--executor-id": "SPARK_EXECUTOR_ID",
        "--cores": "SPARK_EXECUTOR_CORES",
        "--app-id": "SPARK_APPLICATION_ID",
        "--hostname": "SPARK_EXECUTOR_POD_IP",
        "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "--podName": "SPARK_EXECUTOR_POD_NAME",
    }
    return [
        *jvm({}),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        *(options[number] for number in sorted(options)),
        _BACKEND,
        *(part for argument, name in described.items() for part in (argument, given[name])),
    ]


def main() -> None:
    """Become the JVM of the executor, which then gets the signals of the pod."""
    # Spark names a directory of its own images, which is not here.
    os.environ.pop("SPARK_CONF_DIR", None)
    found = command(os.environ)
    os.execvpe(found[0], found, {**os.environ, "SPARK_HOME": str(SPARK)})  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
