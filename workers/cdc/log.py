"""Read the log of a source transaction by transaction, and cut it into parts that fit in memory. Pure.

A transaction that ended at or before the offset is skipped, because it is stored already. A transaction is identified
by where its commit record begins. Offsets lie between records, so a record ends at or before an offset exactly if it
begins before it.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Final

from service.protocol.ids import FragmentId
from workers.cdc.drift import keeps_values
from workers.cdc.fold import Change, Key, Values
from workers.cdc.keys import ExternalTable
from workers.cdc.pgoutput import (
    ROWS,
    Begin,
    Commit,
    Event,
    Piece,
    Pieces,
    TableSent,
    Truncate,
    decode,
    oid_of,
    piece_of,
    row,
)
from workers.cdc.snapshots import Snapshot

PART_CHANGES: Final = 20_000
PART_BYTES: Final = 8 << 20
"""Limits of one part. Two parts are in memory at a time, and the folded changes of one (I8)."""
ROW_BYTES_MAX: Final = 32 << 20
"""The largest row, because both databases and the worker have a row in memory as a whole, more than once (I8)."""
MESSAGE_BYTES_MAX: Final = 256 << 20
"""A longer message is not read at all, so the key of its row remains unknown."""
ROW_TOO_LARGE: Final = f"a row of more than {ROW_BYTES_MAX >> 20} MB"
_BEGINS, _TRUNCATES = b"BT"
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Picked:
    """How to take the key and the relation's values from a sent row, both in the relation's order."""

    fragment: FragmentId
    key: Callable[[Pieces], Key]
    values: Callable[[Pieces], Values]


@dataclass(frozen=True, slots=True)
class Part:
    """Changes by table, in commit order. `messages` is how many were read. `ended`: one of them was a commit."""

    changes: dict[FragmentId, list[Change]]
    messages: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Truncated:
    """The external tables of these fragments were truncated."""

    fragments: tuple[FragmentId, ...]
    messages: int = 1


def undecodable(table: ExternalTable, sent: TableSent, types: Iterable[str]) -> str | None:
    """Return why the rows of a table cannot be decoded, None where they can. `types` are those of the sent columns."""
    known = dict(zip((column.name for column in sent.columns), types, strict=True))
    for column in table.scan.columns:
        kind = known.get(column.external)
        if kind is None:
            return f'its column "{column.external}" was dropped or renamed, or is not published'
        if not keeps_values(column.type, kind):
            return f'its column "{column.external}" is now of type {kind}, not {column.type}'
    identity = {column.name for column in sent.columns if column.key}
    for part in table.key:
        if part.name not in identity:
            return f'its column "{part.name}" is not part of the replica identity'
    return None


def picked(table: ExternalTable, fragment: FragmentId, sent: TableSent) -> Picked:
    """Return how to take key and values from the rows of a table."""
    places = {column.name: place for place, column in enumerate(sent.columns)}
    mine = {column.name: places[column.external] for column in table.scan.columns}
    stamp = table.scan.timestamp
    if stamp is not None:
        # The commit time is appended to the sent columns.
        mine[stamp] = len(sent.columns)
    key = [places[part.name] for part in table.key]
    return Picked(fragment, _getter(key), _getter([mine[column.name] for column in table.relation.columns]))


@dataclass
class LogReader:
    """Reads the log from an offset on.

    `describe` is called with a table description at the first change that needs it, and returns a `Picked` for each
    followed table that needs its rows. `enough` is called after each commit, and returns whether to stop there.
    """

    at: int
    """The end of the last commit that was read."""
    now: Snapshot
    """Any recent snapshot. It provides the upper 32 bits of transaction ids."""
    describe: Callable[[TableSent], Sequence[Picked]]
    enough: Callable[[], bool]
    xids: set[int] = field(default_factory=set[int])
    changes: int = 0
    committed_at: int | None = None
    """The time of the last commit, in microseconds since 1970."""
    commit: int = 0
    """The LSN of the commit of the transaction that is being read."""
    too_large: dict[FragmentId, Key] = field(default_factory=dict[FragmentId, Key])
    """The keys of rows above a size limit. An empty key is unknown."""
    _sent: dict[int, TableSent] = field(default_factory=dict[int, TableSent])
    """The table descriptions that no change has needed yet.

    They may be those of a transaction before the offset, which is skipped, and be outdated there.
    """
    _tables: dict[int, Sequence[Picked]] = field(default_factory=dict[int, Sequence[Picked]])
    _pending: dict[FragmentId, list[Change]] = field(default_factory=dict[FragmentId, list[Change]])
    _xid: int = 0
    _stamp: bytes = b""
    _ended: bool = False

    def read(self, messages: Iterable[bytes]) -> Iterator[Part | Truncated]:
        """Read the slot's messages, which may begin before the offset."""
        # Every request for the log describes its tables again.
        self._sent, self._tables = {}, {}
        skipping, count, size = True, 0, 0
        for message in messages:
            kind = message[0]
            count += 1
            if kind in ROWS:
                if skipping:
                    continue
                self._row(message)
                size += len(message)
                if count >= PART_CHANGES or size >= PART_BYTES:
                    yield self._part(count)
                    count, size = 0, 0
            elif kind == _BEGINS:
                skipping = self._skips(decode(message))
            elif kind == _TRUNCATES and not skipping:
                yield self._part(count)
                yield self._truncated(decode(message))
                count, size = 0, 0
            elif self._note(decode(message), skipping=skipping) and self.enough():
                break
        yield self._part(count)

    @property
    def begun(self) -> set[int]:
        """A copy of the ids of all transactions that were read, including one whose end is not read yet."""
        return self.xids | {self._xid}

    def drop(self, fragments: Container[FragmentId]) -> None:
        """Stop decoding the rows of these tables."""
        self._tables = {
            oid: [one for one in tables if one.fragment not in fragments] for oid, tables in self._tables.items()
        }

    def _part(self, messages: int) -> Part:
        part = Part(self._pending, messages, self._ended)
        self._pending, self._ended = {}, False
        return part

    def _skips(self, begin: Event) -> bool:
        assert isinstance(begin, Begin)
        if begin.lsn < self.at:
            return True
        self.commit = begin.lsn
        self._xid, self._stamp = self.now.full(begin.xid), _stamp(begin.committed_at)
        return False

    def _note(self, event: Event, *, skipping: bool) -> bool:
        """Return whether the event ends a transaction that was read, not skipped."""
        if isinstance(event, TableSent):
            self._sent[event.oid] = event
        if not isinstance(event, Commit) or skipping:
            return False
        self.at, self.committed_at = event.end, event.committed_at
        self.xids.add(self._xid)
        self._ended = True
        return True

    def _truncated(self, event: Event) -> Truncated:
        assert isinstance(event, Truncate)
        self.changes += 1
        return Truncated(tuple(one.fragment for oid in event.oids for one in self._needing(oid)))

    def _needing(self, oid: int) -> Sequence[Picked]:
        if (sent := self._sent.pop(oid, None)) is not None:
            self._tables[oid] = self.describe(sent)
        return self._tables.get(oid, ())

    def _row(self, message: bytes) -> None:
        tables = self._needing(oid_of(message))
        if not tables:
            return
        self.changes += 1
        if len(message) > MESSAGE_BYTES_MAX:
            self.too_large.update((table.fragment, ()) for table in tables if table.fragment not in self.too_large)
            return
        old, new = row(message)
        if new is not None:
            # Append the commit time, for tables with a timestamp column.
            new.append(self._stamp)
        for table in tables:
            key = None if new is None else table.key(new)
            before = key if old is new else None if old is None else table.key(old)
            if len(message) > ROW_BYTES_MAX:
                self.too_large.setdefault(table.fragment, key or before or ())
            change = (self._xid, before, key, None if new is None else table.values(new))
            self._pending.setdefault(table.fragment, []).append(change)


def _stamp(microseconds: int) -> bytes:
    at = _UNIX_EPOCH + timedelta(microseconds=microseconds)
    return piece_of(at.isoformat(sep=" "))


def _getter(places: list[int]) -> Callable[[Pieces], tuple[Piece, ...]]:
    if len(places) > 1:
        return itemgetter(*places)
    (place,) = places
    return lambda pieces: (pieces[place],)
