"""Build a worker's environment and secret files. Queries run in a worker and could read its environment, so it has no
secrets.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from service.protocol.ids import DATABASE_GRAPH, GraphId, WorkerId

_HANDED_ON: Final = re.compile(
    "PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_.*|TZ|LD_LIBRARY_PATH"
    "|SPARK_.*|HADOOP_CONF_DIR|YARN_CONF_DIR|PYTHON.*|TIDEFILL_SPARK_CONF|TIDEFILL_LOG_LEVEL"
)
_SECRET: Final = re.compile("TOKEN|SECRET|PASSWORD|CREDENTIAL")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of one graph's worker. `data_dir` is the service's own; with `java_home` None the worker finds Java
    itself.

    The worker of a serverless job may have other slots (`serverless_spark_master`) and another configuration
    (`serverless_spark_conf`, JSON, instead of TIDEFILL_SPARK_CONF). None means the same as for all others.
    """

    data_dir: Path
    service_url: str
    graph: GraphId
    spark_master: str
    java_home: Path | None
    worker_token: SecretStr
    state_store_url: SecretStr
    serverless_spark_master: str | None = None
    serverless_spark_conf: str | None = None
    spark_conf: str | None = None
    """None: the inherited TIDEFILL_SPARK_CONF."""

    def of_graph(self, graph: GraphId) -> "WorkerSettings":
        """Return the settings of another graph's worker."""
        if graph == DATABASE_GRAPH:
            return replace(self, graph=graph)
        master = self.serverless_spark_master or self.spark_master
        return replace(self, graph=graph, spark_master=master, spark_conf=self.serverless_spark_conf)


def worker_environment(
    settings: WorkerSettings, worker: WorkerId, *, home: Path, temporary: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the whole environment of a worker's process. `home` and `temporary` are the worker's own directories."""
    handed_on = {
        name: value
        for name, value in inherited.items()
        if _HANDED_ON.fullmatch(name) and not _SECRET.search(name.upper())
    }
    java = {} if settings.java_home is None else {"JAVA_HOME": str(settings.java_home)}
    conf = {} if settings.spark_conf is None else {"TIDEFILL_SPARK_CONF": settings.spark_conf}
    return {
        # Shuffles and spills are removed with the worker's directory, instead of staying among the temporary files.
        "SPARK_LOCAL_DIRS": str(home / "spark"),
        **handed_on,
        **conf,
        **java,
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(temporary),
        "TIDEFILL_SERVICE_URL": settings.service_url,
        "TIDEFILL_WORKER_ID": worker,
        "TIDEFILL_GRAPH": str(settings.graph),
        "TIDEFILL_SPARK_MASTER": settings.spark_master,
        "TIDEFILL_SECRETS_DIR": str(home / "secrets"),
    }


def worker_secrets(settings: WorkerSettings) -> dict[str, str]:
    """Return the files of the secrets directory: name and text."""
    return {
        "tidefill_worker_token": settings.worker_token.get_secret_value(),
        "tidefill_state_store_url": settings.state_store_url.get_secret_value(),
    }
