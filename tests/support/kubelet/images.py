"""Which program an image stands for, on a machine that has no images."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tests.support.control_plane.api import Document

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


def python(launch: Launch) -> Program:
    """An image whose entry point is this interpreter."""
    return Program((*(launch.command or (sys.executable,)), *launch.args), launch.environment)
