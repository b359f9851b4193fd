"""Look at the places of a lake, and refuse folders of this machine in which nobody keeps one."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from service.protocol.delta import DeltaPlace, place_of
from workers.connectors.delta_files import Files
from workers.connectors.port import RefusedTableError

_SYSTEM: Final = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
_MEMORY: Final = "/dev/shm"  # noqa: S108 - a table in memory is nobody else's
_MARKS: Final = ("PG_VERSION", "postgres/cluster/PG_VERSION")
"""The folder of a Postgres server has the first one, and the data folder of a service with a Postgres of its own the
second one.
"""


def check_place(place: DeltaPlace) -> None:
    """Raise ValueError if a table lies in a folder of the system, or of a Postgres server.

    A file there can keep a server from starting. Links are followed: `/proc/1/cwd` leads anywhere.
    """
    if place.store is not None:
        return
    real = os.path.realpath(place.location)
    folders = [Path(real), *Path(real).parents]
    if real == "/":
        raise ValueError(f"location {place.location} is the whole machine")
    if any(str(one) in _SYSTEM for one in folders) and Path(_MEMORY) not in folders:
        raise ValueError(f"location {place.location} is in a folder of the system")
    if any((one / mark).exists() for one in folders for mark in _MARKS):
        raise ValueError(f"location {place.location} is in the folder of a Postgres server")


def check_roots(options: Mapping[str, str], roots: Sequence[str] | None) -> None:
    """Raise ValueError if a location leads over a link, or out of the permitted folders. None permits any.

    The service compares locations by their names: a PURGE of one name would remove a table of another one, and a table
    would feed itself. A permitted folder may be a link itself.
    """
    place = place_of(options)
    if place.store is not None:
        return
    real, named = Path(os.path.realpath(place.location)), Path(os.path.normpath(f"/{place.location.lstrip('/')}"))
    permitted = [Path(one) for one in (("/",) if roots is None else roots) if "://" not in one]
    if not any(real.is_relative_to(os.path.realpath(one)) for one in permitted):
        raise ValueError(f"location {place.location} leads out of the permitted places")
    names = {os.path.realpath(one) / named.relative_to(one) for one in permitted if named.is_relative_to(one)}
    if real not in {named, *names}:
        # Where it leads is told to nobody: `/proc` has links to the folders of all processes.
        check_place(place)
        raise ValueError(f"location {place.location} leads over a link: name its folder by its own path")


def check_there(options: Mapping[str, str]) -> None:
    """Raise RefusedTableError if there is no place in which tables may lie, as the worker sees it."""
    place = place_of(options)
    check_place(place)
    try:
        there = Files.of(place).there("")
    except OSError as error:
        raise RefusedTableError(f"{place.location} cannot be read by the worker: {error}") from error
    if not there:
        raise RefusedTableError(f"there is no folder {place.location}, as the worker sees it")
