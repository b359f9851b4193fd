"""Decide where the tables of a lake may lie, and that none feeds itself. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from posixpath import normpath
from typing import Final

from service.domain.errors import Invalid
from service.protocol.delta import STAGING, location_of

SETTING: Final = "TIDEFILL_LAKE_ROOTS"
LOCATION_MAX: Final = 1_000
"""How many characters a new location may have. A worker makes the folders of one that it is to write to."""
_OF_TABLES: Final = frozenset({STAGING, "_delta_log"})


@dataclass(frozen=True, slots=True)
class LakeRoots:
    """The folders and the places in object stores under which tables may lie. None: anywhere that workers permit."""

    roots: tuple[str, ...] | None = None

    def check_target(self, location: str) -> None:
        """Raise Invalid if a target would have a permitted place to itself, where the tables of all others lie."""
        if any(is_under(normal(root), location) for root in self.roots or ()):
            raise Invalid(f"{location} is for the tables of all ({SETTING}): choose a location below it")

    def check(self, location: str) -> None:
        """Raise Invalid if a table may not lie there."""
        if len(location) > LOCATION_MAX:
            raise Invalid(f"location has at most {LOCATION_MAX} characters")
        if not _OF_TABLES.isdisjoint(location.split("/")):
            raise Invalid(f"location {location} is a folder of a Delta table's own")
        if self.roots is None or any(is_under(location, normal(root)) for root in self.roots):
            return
        permitted = ", ".join(self.roots) or "none"
        raise Invalid(f"location {location} is not under one of the permitted places ({SETTING}): {permitted}")


ANYWHERE: Final = LakeRoots()


def located(options: Mapping[str, str]) -> str:
    """Return where the options of a connector say that its table lies, in one form for each place."""
    return normal(location_of(options))


def normal(location: str) -> str:
    """Return a location without dots and doubled slashes. POSIX would keep two at the beginning."""
    scheme, found, path = location.partition("://")
    return f"{scheme}://{normpath(path)}" if found else normpath(f"/{location.lstrip('/')}")


def below(location: str, path: str) -> str:
    """Return where a table lies whose path begins at a location. Raises Invalid if it may lead elsewhere."""
    if any(part in {"", ".", ".."} for part in path.split("/")):
        raise Invalid(f"\"{path}\" is no path below {location}, such as 'sales' or 'europe/sales'")
    return f"{location.rstrip('/')}/{path}"


def check_no_loop(location: str, read: Collection[str]) -> None:
    """Raise Invalid if a target is among the places from which its rows come, directly or through other targets."""
    if location in read:
        raise Invalid(
            f"its rows come from the table at {location}, directly or through others: it would feed itself without end"
        )


def check_target(
    location: str, *, upsert: bool, folders: Collection[str], tables: Collection[str], targets: Mapping[str, bool]
) -> None:
    """Raise Invalid if others use the location of a new target, or one below or above it.

    `folders` are those whose files tables take, and `tables` the Delta tables that are read. `targets` says of each
    location that is written to whether its rows change. The empty target of a sink was taken by that of another caller,
    whose PURGE then removed the rows of both. One among the partitions of another table would do so too.
    """
    if location in folders:
        raise Invalid(f"a table takes the files in {location}, and would take none of a Delta table's: choose another")
    if location in targets and (upsert or targets[location]):
        raise Invalid(
            f"the table at {location} is that of another view or sink: only sinks of type append-only share one"
        )
    outer = (one for one in sorted({*tables, *targets}) if is_under(location, one))
    inner = (one for one in sorted(targets) if is_under(one, location))
    other = next((one for one in (*outer, *inner) if one != location), None)
    if other is not None:
        raise Invalid(f"another table lies at {other}, and none lies in the folder of another: choose another location")


def check_purge(location: str, others: Collection[str]) -> None:
    """Raise Invalid if another table lies in or below a table whose folder is to be removed."""
    inner = next((one for one in sorted(others) if is_under(one, location)), None)
    if inner is not None:
        raise Invalid(
            f"PURGE removes all that lies in {location}, and another table lies at {inner}: drop without PURGE"
        )


def is_under(location: str, root: str) -> bool:
    """Whether a location is that of `root`, or below it."""
    return location == root or location.startswith(f"{root.rstrip('/')}/")
