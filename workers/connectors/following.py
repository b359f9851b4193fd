"""Follow what is read in place: the steps that a table takes from epoch to epoch, and what the state store keeps of
each.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from service.protocol import delta, file_source
from service.protocol.ids import Epoch
from service.protocol.relation import Relation
from workers.connectors.delta_watch import Watch
from workers.connectors.folder_rows import file_rows, files_at
from workers.connectors.folder_watch import FolderWatch
from workers.connectors.in_place import first_rows, first_version, folder_in, place_of, version_row
from workers.connectors.port import RefusedTableError
from workers.connectors.watching import Watching
from workers.state_store.port import VersionedStore

ROWS_AT_ONCE: Final = 2_000_000
"""An epoch takes new files of about so many rows. Views read them at once."""


@dataclass(frozen=True, slots=True)
class Step:
    """What an epoch adds: where the table is then, what the state store keeps of it, and how many rows began and
    ended.
    """

    position: str
    kept: Iterable[pa.RecordBatch]
    inserted: int
    ended: int = 0


class Follower(Protocol):
    """Follows one table in a generation."""

    @property
    def watching(self) -> Watching | None:
        """What looks for something new, once it does."""
        ...

    def step(self, store: VersionedStore, committed: Epoch, known: str | None) -> Step | None:
        """Return what the next epoch adds, None if nothing. `known` is the position so far, None before the first step.

        Raises RefusedTableError if the table cannot be followed further.
        """
        ...


@dataclass
class DeltaFollower:
    """Follows a Delta table from version to version."""

    relation: Relation
    caller: str = ""
    watching: Watch | None = None
    rows: int | None = None
    """About how many rows the table has, as the service was told."""

    def step(self, store: VersionedStore, committed: Epoch, known: str | None) -> Step | None:
        """See `Follower`."""
        del store, committed
        before = None if known is None else int(known)
        newest = self._newest(before)
        if newest == before:
            return None
        grown = self._grown(before)
        # Besides the rows, as many as are known, the version itself has changed.
        return Step(str(newest), version_row(newest, before), 1 + max(grown, 0), 1 + max(-grown, 0))

    def _grown(self, before: int | None) -> int:
        """Return by how many rows the table has grown since they were last counted."""
        rows = first_rows(self.relation) if before is None else None if self.watching is None else self.watching.rows
        if rows is None:
            return 0
        known, self.rows = 0 if before is None else rows if self.rows is None else self.rows, rows
        return rows - known

    def _newest(self, before: int | None) -> int:
        """Return the newest version. The first epoch has the one that the table was made with."""
        if before is None:
            return first_version(self.relation)
        if self.watching is None:
            self.watching = Watch(place_of(self.relation), self.relation, before, caller=self.caller)
            self.watching.start()
        if self.watching.broken is not None and self.watching.newest == before:
            raise RefusedTableError(self.watching.broken)
        return self.watching.newest


@dataclass
class FolderFollower:
    """Follows a folder of Parquet files, as they come."""

    relation: Relation
    caller: str = ""
    watching: FolderWatch | None = None

    def step(self, store: VersionedStore, committed: Epoch, known: str | None) -> Step | None:
        """See `Follower`."""
        watch = self.watching
        if watch is None:
            watch = self.watching = self._begun(store, committed, known)
        # A table that is broken takes nothing more: its readers keep what they have.
        if watch.broken is not None:
            raise RefusedTableError(watch.broken)
        found = watch.take(ROWS_AT_ONCE)
        if known is not None and not found:
            return None
        rows = sum(one.rows for one in found)
        return Step(str(int(known or 0) + len(found)), file_rows(found) if found else (), rows)

    def _begun(self, store: VersionedStore, committed: Epoch, known: str | None) -> FolderWatch:
        """Begin to look. The first epoch waits for it, so that views find the files that are there already."""
        before = () if known is None else files_at(store, self.relation, committed)
        folder = folder_in(self.relation)
        stamps = {one.path: one.stamp for one in before}
        watch = FolderWatch(folder.place, self.relation, folder, stamps, caller=self.caller)
        watch.start(first=known is None)
        return watch


FOLLOWERS: Final[Mapping[str, Callable[[Relation, str], Follower]]] = {
    delta.NAME: DeltaFollower,
    file_source.NAME: FolderFollower,
}


def follower_of(relation: Relation, caller: str = "") -> Follower:
    """Return what follows a caller's relation that is read in place, which has the values of its secrets."""
    assert relation.lake is not None
    return FOLLOWERS[relation.lake.name](relation, caller)
