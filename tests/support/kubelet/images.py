"""Which program an image stands for, on a machine that has no images."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tests.support.control_plane.api import Document

_ROOT: Final = Path(__file__).parents[3]
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a container finds the token of its ServiceAccount."""


@dataclass(frozen=True)
class Launch:
    """A container that is to be started. `mounts` gives the local directory for each mount path; environment and
    arguments name these directories already.
    """

    image: str
    command: Sequence[str]
    args: Sequence[str]
    environment: Mapping[str, str]
    mounts: Mapping[str, Path]
    ip: str
    """The pod's own loopback address, so that every pod can listen on the port that it declares."""
    pod: Document


@dataclass(frozen=True)
class Program:
    """A command and its whole environment."""

    command: Sequence[str]
    environment: Mapping[str, str]


Image: TypeAlias = Callable[[Launch], Program]


def repository(image: str) -> str:
    """Return an image's name without its tag."""
    name, colon, tag = image.rpartition(":")
    return name if colon and "/" not in tag else image


def as_written(launch: Launch) -> Program:
    """An image with the programs of this machine: it runs the container's own command."""
    return Program((*launch.command, *launch.args), launch.environment)


def tidefill_service(launch: Launch) -> Program:
    """The service of this repository, which listens on its pod's address instead of all of the machine's."""
    own = {"PYTHONPATH": str(_ROOT), "TIDEFILL_HOST": launch.ip}
    return Program((sys.executable, "-m", "service.cli", *launch.args), {**launch.environment, **own})


def tidefill_worker(launch: Launch) -> Program:
    """The worker of this repository, or another command of its image.

    It has the Spark configuration of the tests where the container has none.
    """
    conf = launch.environment.get("TIDEFILL_SPARK_CONF", os.environ.get("TIDEFILL_SPARK_CONF", "{}"))
    # Paths inside of a setting are not those of this machine.
    for path, directory in launch.mounts.items():
        conf = conf.replace(f'"{path}/', f'"{directory}/')
    own = {"PYTHONPATH": str(_ROOT), "PYSPARK_PYTHON": sys.executable, "TIDEFILL_SPARK_CONF": conf}
    if account := launch.mounts.get(ACCOUNT):
        own["KUBERNETES_AUTH_SERVICEACCOUNT_TOKEN"] = str(account / "token")
        own["KUBERNETES_CERTS_CA_FILE"] = str(account / "ca.crt")
    (_, *arguments) = launch.command or ("python", "-m", "workers")
    return Program((sys.executable, *arguments, *launch.args), {**launch.environment, **own})
