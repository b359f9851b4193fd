"""Define the state of one followed table in one epoch, and how it breaks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from service.protocol.ids import FragmentId
from service.protocol.quoting import quoted
from workers.cdc.drift import named_otherwise
from workers.cdc.external import Session
from workers.cdc.fold import Key
from workers.cdc.keys import ExternalTable, Stretch
from workers.cdc.pgoutput import TableSent
from workers.cdc.publication import Watch, Watched, look
from workers.cdc.snapshots import Snapshot

_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")


def remedy(name: str) -> str:
    """Return how a broken table is followed again. The cause has to be mended before, if it lasts."""
    return f"ALTER TABLE {name if _PLAIN.fullmatch(name) else quoted(name)} RELOAD reads it again"


@dataclass
class TableEpoch:
    """One table in one epoch.

    `settled` are the key ranges read in earlier epochs. `fresh` are those read in this epoch, by actor, and `snapshots`
    the actors' snapshots.
    """

    fragment: FragmentId
    table: ExternalTable
    settled: Sequence[Stretch]
    complete: bool
    """Whether its history was complete before this epoch. Then every key counts, and no key range is looked up."""
    fresh: Mapping[int, Sequence[Stretch]] = field(default_factory=dict[int, Sequence[Stretch]])
    snapshots: Mapping[int, Snapshot] = field(default_factory=dict[int, Snapshot])
    paged: int = 0
    """The number of versions from pages."""
    broken: str | None = None
    watch: Watch = field(default_factory=lambda: Watch(None))
    patched: dict[Key, Snapshot] = field(default_factory=dict[Key, Snapshot])
    """Keys whose row was requested from the external database, with the snapshot in which it was read."""
    truncated: bool = False
    nulled: int = 0
    """The number of values that were stored as NULL."""
    changes: int = 0
    made: int = 0
    ended: int = 0

    @property
    def delta(self) -> int:
        """The change of the table's number of keys."""
        return self.paged + self.made - self.ended

    @property
    def nulls(self) -> bool:
        """Whether a value that cannot be kept is stored as NULL."""
        return self.table.scan.unkeepable == "null"

    @property
    def watched(self) -> Watched:
        """The table as the next look at it needs it."""
        key = () if self.complete else tuple(part.name for part in self.table.key)
        return Watched(self.table, self.watch, ordered=key)

    def breaks(self, reason: str) -> None:
        """Stop following the table. `follow` then undoes this epoch's writes to it. The first reason counts."""
        self.broken = self.broken or f"{reason}: {remedy(self.table.relation.name)}"


def look_at_publication(session: Session, tables: Sequence[TableEpoch]) -> None:
    """Break the tables that were altered, or of which the publication may not have published every change."""
    missing = look(session.control, session.publication, [table.watched for table in tables])
    for table, reason in zip(tables, missing, strict=True):
        if reason is not None:
            table.breaks(reason)


def altered(session: Session, table: TableEpoch, error: str) -> None:
    """Break a table of which a query failed. The catalog has the cause, the error only its effect. Raises AwayError."""
    look_at_publication(session, [table])
    table.breaks(f"the external table changed: {error}")


def has_other_names(table: TableEpoch, sent: TableSent) -> bool:
    """Return whether the log describes a table with other names than those that were followed."""
    before, now = table.watch.at_offset, table.watch.now
    if before is None or now is None or before.shape is None or now.shape is None:
        return False
    return named_otherwise([column.name for column in sent.columns], before.shape, now.shape)
