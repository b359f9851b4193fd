"""Messages of Postgres's `pgoutput`, protocol version 1, as values. Pure.

A column's value stays what it was on the wire, its length and its text in UTF-8, which is also what binary COPY wants:
so it is looked at only where it is part of a key, and nothing is ever escaped. What is missing says why: `NULL` is a
value, None is a TOASTed value that did not change and was not sent.

A transaction comes whole, in the order of commits, between `Begin` and `Commit`. Only their LSNs count; those of its
changes lie anywhere before.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

NULL: Final = b"\xff\xff\xff\xff"
"""A NULL on the wire: the length -1."""

Piece = bytes | None
"""One column: the length and the text, or `NULL`; None is an unchanged TOASTed value."""
Pieces = list[Piece]

_TEXT, _NULL, _UNCHANGED = b"tnu"
_NEW, _OLD = b"NO"
_POSTGRES_EPOCH_MICROSECONDS: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: where Postgres's clock begins."""


class DecodingError(Exception):
    """The message is not one that protocol version 1 has."""


class Begin(NamedTuple):
    """A committed transaction follows. `lsn` is where its commit record begins, `xid` has 32 bits, `committed_at` is in
    microseconds since 1970.
    """

    lsn: int
    committed_at: int
    xid: int


class Commit(NamedTuple):
    """The transaction is over. `end` is where its commit record ends."""

    end: int
    committed_at: int


class Insert(NamedTuple):
    """A new row."""

    oid: int
    new: Pieces


class Update(NamedTuple):
    """A row that changed. `old` is there where the key changed, or always under `REPLICA IDENTITY FULL`."""

    oid: int
    old: Pieces | None
    new: Pieces


class Delete(NamedTuple):
    """A row that is gone; of its columns at least the key's."""

    oid: int
    old: Pieces


class Truncate(NamedTuple):
    """Every row of these tables is gone."""

    oids: tuple[int, ...]


class ColumnSent(NamedTuple):
    """A column of a table as it is sent. `key`: it is part of the replica identity."""

    name: str
    oid: int
    modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class TableSent:
    """How a table's rows are sent from here on; comes before its first row, and anew whenever it changed."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[ColumnSent, ...]


class Other(NamedTuple):
    """A message that says nothing of rows: a type, an origin, a logical message."""

    kind: str


Event = Begin | Commit | Insert | Update | Delete | Truncate | TableSent | Other

_tuple_count = struct.Struct(">H").unpack_from
_begin = struct.Struct(">QqI").unpack_from
_commit = struct.Struct(">BQQq").unpack_from
_oid = struct.Struct(">I").unpack_from


def decode(message: bytes) -> Event:
    """Return what a message says. Raises DecodingError."""
    read = _READERS.get(message[0])
    if read is None:
        raise DecodingError(f"a message of kind {chr(message[0])!r}")
    return read(message)


def text_of(piece: Piece) -> str | None:
    """Return the text of a value, None for NULL."""
    assert piece is not None, "a value that was not sent"
    return None if piece == NULL else piece[4:].decode()


def piece_of(text: str | None) -> bytes:
    """Return a text as it is on the wire."""
    if text is None:
        return NULL
    data = text.encode()
    return len(data).to_bytes(4, "big") + data


def lsn_text(lsn: int) -> str:
    """Print an LSN as Postgres does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _insert(message: bytes) -> Insert:
    return Insert(_oid(message, 1)[0], _pieces(message, 6)[0])


def _delete(message: bytes) -> Delete:
    return Delete(_oid(message, 1)[0], _pieces(message, 6)[0])


def _read_begin(message: bytes) -> Begin:
    lsn, at, xid = _begin(message, 1)
    return Begin(lsn, at + _POSTGRES_EPOCH_MICROSECONDS, xid)


def _read_commit(message: bytes) -> Commit:
    _, _, end, at = _commit(message, 1)
    return Commit(end, at + _POSTGRES_EPOCH_MICROSECONDS)


def _truncate(message: bytes) -> Truncate:
    (count,) = _oid(message, 1)
    return Truncate(struct.unpack_from(f">{count}I", message, 6))


def _other(message: bytes) -> Other:
    return Other(chr(message[0]))


def _update(message: bytes) -> Update:
    (oid,) = _oid(message, 1)
    kind = message[5]
    if kind == _NEW:
        return Update(oid, None, _pieces(message, 6)[0])
    old, end = _pieces(message, 6)
    new, _ = _pieces(message, end + 1)
    if None in new:
        # What an old row brings of a value that did not change: all of them under FULL, else those of the key.
        full = kind == _OLD
        new = [
            before if value is None and (full or before != NULL) else value
            for before, value in zip(old, new, strict=True)
        ]
    return Update(oid, old, new)


def _pieces(message: bytes, at: int) -> tuple[Pieces, int]:
    """Read a row from `at` on; return its columns, and where it ends."""
    (count,) = _tuple_count(message, at)
    at += 2
    pieces: Pieces = []
    for _ in range(count):
        kind = message[at]
        if kind == _TEXT:
            end = at + 5 + int.from_bytes(message[at + 1 : at + 5], "big")
            pieces.append(message[at + 1 : end])
            at = end
        elif kind == _NULL:
            pieces.append(NULL)
            at += 1
        elif kind == _UNCHANGED:
            pieces.append(None)
            at += 1
        else:
            raise DecodingError(f"a column of kind {chr(kind)!r}")
    return pieces, at


def _table(message: bytes) -> TableSent:
    (oid,) = _oid(message, 1)
    schema, at = _string(message, 5)
    name, at = _string(message, at)
    identity = chr(message[at])
    (count,) = _tuple_count(message, at + 1)
    at += 3
    columns: list[ColumnSent] = []
    for _ in range(count):
        key = bool(message[at] & 1)
        column, at = _string(message, at + 1)
        kind, modifier = struct.unpack_from(">Ii", message, at)
        at += 8
        columns.append(ColumnSent(column, kind, modifier, key))
    # An empty schema stands for pg_catalog.
    return TableSent(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1


_READERS: Final[Mapping[int, Callable[[bytes], Event]]] = {
    ord("B"): _read_begin,
    ord("C"): _read_commit,
    ord("D"): _delete,
    ord("I"): _insert,
    ord("M"): _other,
    ord("O"): _other,
    ord("R"): _table,
    ord("T"): _truncate,
    ord("U"): _update,
    ord("Y"): _other,
}
