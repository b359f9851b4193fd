"""Look at the Delta tables of other programs that are read in place: what a table is, and its next versions.

A version is followed as soon as it is there. The columns that the table had when it was made have to stay; files may be
added, removed and marked in any way. Next: `workers.connectors.delta_rows`, which reads the files.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from service.protocol.delta import DeltaPlace
from service.protocol.delta_source import delta_columns, source_place
from service.protocol.relation import Relation
from workers.connectors.delta_apart import apart
from workers.connectors.delta_files import Files
from workers.connectors.delta_log import actions_of, check_mapping, check_protocol, known_rows, name_of
from workers.connectors.delta_shape import shape_of
from workers.connectors.limited import TEXT_MAX
from workers.connectors.places import check_place
from workers.connectors.port import RefusedTableError, TableShape
from workers.connectors.watching import Watching

COUNT_SECONDS: Final = 30.0
"""How often the rows of a table that changes are counted, which reads its whole log."""
LOOK_SECONDS: Final = 1.0
"""After so long the caller's other tables have their turn."""
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
            # While a line of a log is parsed, no other thread of a process runs (I13).
            self.newest, self.broken = apart(followed, self.place, self.relation, self.newest)
        # An object store says itself that it is away. A folder that is not mounted is empty.
        if not files.in_store and not files.there("_delta_log"):
            raise OSError("its Delta table is away")

    def _count(self) -> None:
        now = time.monotonic()  # noqa: TID251 - a thread of its own paces itself
        if now >= self._counted_next:
            with suppress(OSError, RefusedTableError):  # nobody needs it
                self.rows = apart(known_rows, self.place, self.newest)
            took = time.monotonic() - now  # noqa: TID251 - as above
            self._counted_next = now + max(COUNT_SECONDS, took / _COUNT_SHARE)


def followed(place: DeltaPlace, relation: Relation, newest: int) -> tuple[int, str | None]:
    """Return the version up to which a table can be followed from `newest` on, as far as there is time for a look, and
    why it cannot be followed further.
    """
    files, ends = Files.of(place), time.monotonic() + LOOK_SECONDS  # noqa: TID251 - paces itself
    while files.there(name_of(newest + 1)):
        try:
            _check(files, relation, newest + 1)
        except RefusedTableError as error:
            return newest, f"version {newest + 1}: {error}"[:TEXT_MAX]
        newest += 1
        if time.monotonic() > ends:  # noqa: TID251 - as above
            break
    return newest, None


def _check(files: Files, relation: Relation, version: int) -> None:
    for action in actions_of(files, version):
        if (protocol := action.get("protocol")) is not None:
            check_protocol(protocol.get("readerFeatures") or ())
        if (metadata := action.get("metaData")) is not None:
            check_mapping(metadata.get("configuration") or {})
            _check_columns(relation, metadata["schemaString"])


def _check_columns(relation: Relation, schema: str) -> None:
    there = delta_columns(schema)
    types = {one.name: one.type for one in there.columns}
    for column in relation.columns:
        if column.name not in types:
            how = there.refused.get(column.name, "is gone")
            raise RefusedTableError(f'column "{column.name}" {how}')
        if types[column.name] != column.type:
            raise RefusedTableError(f'column "{column.name}" was {column.type}, and is {types[column.name]}')
