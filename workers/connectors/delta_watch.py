"""Look at the Delta tables of other programs that are read in place: what a table is, and its next versions.

A version is followed as soon as it is there. The columns that the table had when it was made have to stay; files may be
added, removed and marked in any way. Next: `workers.connectors.delta_rows`, which reads the files.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from service.protocol.delta_source import delta_columns, source_place
from workers.connectors.delta_files import Files
from workers.connectors.delta_log import actions_of, check_mapping, check_protocol, name_of
from workers.connectors.delta_shape import shape_of
from workers.connectors.places import check_place
from workers.connectors.port import RefusedTableError, TableShape
from workers.connectors.watching import Watching

COUNT_SECONDS: Final = 30.0
"""How often the rows of a table that changes are counted, which reads its whole log."""
_COUNT_SHARE: Final = 0.02
"""Counting takes at most this share of the time."""


def describe(options: Mapping[str, str]) -> TableShape:
    """Return what a table is now. Raises RefusedTableError with the reason if it cannot be read in place."""
    place = source_place(options)
    check_place(place)
    return shape_of(place)


@dataclass
class Watch(Watching):
    """Looks for new versions of a table.

    `newest` is the last version up to which the table can be followed. `rows` is about how many rows the table has,
    None before they were counted.
    """

    newest: int
    rows: int | None = None
    _counted_next: float = 0.0

    @override
    def look(self) -> None:
        """Go to the newest version that can be followed. Raises OSError if the storage is away."""
        before = self.newest
        self._go_on()
        if self.broken is None and (self.rows is None or self.newest > before):
            self._count()

    def _go_on(self) -> None:
        files = Files.of(self.place)
        while not self.over and files.there(name_of(self.newest + 1)):
            try:
                self._check(files, self.newest + 1)
            except RefusedTableError as error:
                self.broken = f"version {self.newest + 1}: {error}"
            else:
                self.newest += 1
        # An object store says itself that it is away. A folder that is not mounted is empty.
        if not files.in_store and not files.there("_delta_log"):
            raise OSError("its Delta table is away")

    def _count(self) -> None:
        now = time.monotonic()  # noqa: TID251 - a thread of its own paces itself
        if now >= self._counted_next:
            self.rows = shape_of(self.place, self.newest).rows
            took = time.monotonic() - now  # noqa: TID251 - as above
            self._counted_next = now + max(COUNT_SECONDS, took / _COUNT_SHARE)

    def _check(self, files: Files, version: int) -> None:
        for action in actions_of(files, version):
            if (protocol := action.get("protocol")) is not None:
                check_protocol(protocol.get("readerFeatures") or ())
            if (metadata := action.get("metaData")) is not None:
                check_mapping(metadata.get("configuration") or {})
                self._check_columns(metadata["schemaString"])

    def _check_columns(self, schema: str) -> None:
        there = delta_columns(schema)
        types = {one.name: one.type for one in there.columns}
        for column in self.relation.columns:
            if column.name not in types:
                how = there.refused.get(column.name, "is gone")
                raise RefusedTableError(f'column "{column.name}" {how}')
            if types[column.name] != column.type:
                raise RefusedTableError(f'column "{column.name}" was {column.type}, and is {types[column.name]}')
