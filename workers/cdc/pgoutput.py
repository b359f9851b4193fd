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

Row = tuple[Pieces | None, Pieces | None]
"""The row that was, of its columns at least the key's, and the row that is; None where there is none. Both are one list
where nothing was sent of the row that was: then its key is the same. The key changed, or the identity is FULL, where
they are two.
"""

ROWS: Final = frozenset(b"IUD")
"""The kinds of messages that `row` reads; `decode` reads all others."""

_INSERT, _DELETE = b"ID"
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


Event = Begin | Commit | Truncate | TableSent | Other

_tuple_count = struct.Struct(">H").unpack_from
_begin = struct.Struct(">QqI").unpack_from
_commit = struct.Struct(">BQQq").unpack_from
_word = struct.Struct(">I").unpack_from


def decode(message: bytes) -> Event:
    """Return what a message says. Raises DecodingError."""
    read = _READERS.get(message[0])
    if read is None:
        raise DecodingError(f"a message of kind {chr(message[0])!r}")
    return read(message)


def oid_of(message: bytes) -> int:
    """Return the table of a row's message."""
    return _word(message, 1)[0]


def row(message: bytes) -> Row:
    """Return what a row's message says. Raises DecodingError."""
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
        # What an old row brings of a value that did not change: all of them under FULL, else those of the key.
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
    """Return a text as it is on the wire."""
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
    """Read a row from `at` on; return its columns, and where it ends."""
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
