"""Decode the messages of Postgres's `pgoutput`, protocol version 1. Pure.

A column's value keeps its wire form: the length and the text in UTF-8. Binary COPY has the same form, so no value is
escaped, and only key columns are ever read. `NULL` is a value. None is an unchanged TOASTed value, which Postgres does
not send.

A whole transaction comes between `Begin` and `Commit`, and transactions come in commit order. Only the LSNs of these
two count. The LSNs of its changes are lower, in no particular relation to other transactions.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

NULL: Final = b"\xff\xff\xff\xff"
"""A NULL on the wire: the length -1."""

Piece = bytes | None
"""One column: the length and the text, or `NULL`. None is an unchanged TOASTed value."""
Pieces = list[Piece]

Row = tuple[Pieces | None, Pieces | None]
"""The old row, with at least its key columns, and the new row. None where there is no such row.

Both are the same list where no old row was sent: then the key is unchanged. They are two lists where the key changed or
the replica identity is FULL.
"""

ROWS: Final = frozenset(b"IUD")
"""The kinds of messages that `row` reads. `decode` reads all others."""

_INSERT, _DELETE = b"ID"
_TEXT, _NULL, _UNCHANGED = b"tnu"
_NEW, _OLD = b"NO"
_POSTGRES_EPOCH_MICROSECONDS: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: the epoch of Postgres's timestamps."""


class DecodingError(Exception):
    """The message does not belong to protocol version 1."""


class Begin(NamedTuple):
    """The start of a committed transaction.

    `lsn` is where its commit record begins. `xid` has 32 bits. `committed_at` is in microseconds since 1970.
    """

    lsn: int
    committed_at: int
    xid: int


class Commit(NamedTuple):
    """The end of a transaction. `end` is where its commit record ends."""

    end: int
    committed_at: int


class Truncate(NamedTuple):
    """The truncation of tables."""

    oids: tuple[int, ...]


class ColumnSent(NamedTuple):
    """A column in a table description. `key`: it is part of the replica identity."""

    name: str
    oid: int
    modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class TableSent:
    """The description of a table's rows from here on. It precedes the first row, and is repeated after a change."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[ColumnSent, ...]


class Other(NamedTuple):
    """A message that does not concern rows: a type, an origin, a logical message."""

    kind: str


Event = Begin | Commit | Truncate | TableSent | Other

_tuple_count = struct.Struct(">H").unpack_from
_begin = struct.Struct(">QqI").unpack_from
_commit = struct.Struct(">BQQq").unpack_from
_word = struct.Struct(">I").unpack_from


def decode(message: bytes) -> Event:
    """Decode a message that is not a row. Raises DecodingError."""
    read = _READERS.get(message[0])
    if read is None:
        raise DecodingError(f"a message of kind {chr(message[0])!r}")
    return read(message)


def oid_of(message: bytes) -> int:
    """Return the OID of the table of a row message."""
    return _word(message, 1)[0]


def row(message: bytes) -> Row:
    """Decode a row message. Raises DecodingError."""
    kind = message[0]
    first, end = _pieces(message, 6)
    if kind == _INSERT:
        return None, first
    if kind == _DELETE:
        return first, None
    sent = message[5]
    if sent == _NEW:
        return first, first
    new, _ = _pieces(message, end + 1)
    if None in new:
        # Fill unchanged values from the old row. It has all values under FULL, otherwise those of the key.
        full = sent == _OLD
        new = [
            before if value is None and (full or before != NULL) else value
            for before, value in zip(first, new, strict=True)
        ]
    return first, new


def text_of(piece: Piece) -> str | None:
    """Return the text of a value, None for NULL."""
    assert piece is not None, "a value that was not sent"
    return None if piece == NULL else piece[4:].decode()


def piece_of(text: str | None) -> bytes:
    """Return the wire form of a text, `NULL` for None."""
    if text is None:
        return NULL
    data = text.encode()
    return len(data).to_bytes(4, "big") + data


def lsn_text(lsn: int) -> str:
    """Print an LSN as Postgres does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _read_begin(message: bytes) -> Begin:
    lsn, at, xid = _begin(message, 1)
    return Begin(lsn, at + _POSTGRES_EPOCH_MICROSECONDS, xid)


def _read_commit(message: bytes) -> Commit:
    _, _, end, at = _commit(message, 1)
    return Commit(end, at + _POSTGRES_EPOCH_MICROSECONDS)


def _truncate(message: bytes) -> Truncate:
    (count,) = _word(message, 1)
    return Truncate(struct.unpack_from(f">{count}I", message, 6))


def _other(message: bytes) -> Other:
    return Other(chr(message[0]))


def _pieces(message: bytes, at: int) -> tuple[Pieces, int]:
    """Read a row from `at` on. Return its columns and where it ends."""
    (count,) = _tuple_count(message, at)
    at += 2
    pieces: Pieces = []
    for _ in range(count):
        kind = message[at]
        at += 1
        if kind == _TEXT:
            end = at + 4 + _word(message, at)[0]
            pieces.append(message[at:end])
            at = end
        elif kind == _NULL:
            pieces.append(NULL)
        elif kind == _UNCHANGED:
            pieces.append(None)
        else:
            raise DecodingError(f"a column of kind {chr(kind)!r}")
    return pieces, at


def _table(message: bytes) -> TableSent:
    (oid,) = _word(message, 1)
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
    ord("M"): _other,
    ord("O"): _other,
    ord("R"): _table,
    ord("T"): _truncate,
    ord("Y"): _other,
}
