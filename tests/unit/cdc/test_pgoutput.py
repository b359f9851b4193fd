"""Messages of the protocol, byte for byte; what real servers send is in `tests/integration/cdc`."""

import struct

import pytest

from service.protocol.cdc import lsn_of
from workers.cdc.pgoutput import (
    NULL,
    Begin,
    ColumnSent,
    Commit,
    DecodingError,
    Other,
    TableSent,
    Truncate,
    decode,
    lsn_text,
    oid_of,
    piece_of,
    row,
    text_of,
)


def tuple_of(*values: str | bytes | None) -> bytes:
    """Texts, None for NULL, `b"u"` for an unchanged value."""
    columns = b"".join(
        b"n" if value is None else b"u" if value == b"u" else b"t" + piece_of(str(value)) for value in values
    )
    return struct.pack(">H", len(values)) + columns


OID = struct.pack(">I", 16_400)


def test_a_transaction_is_known_by_the_places_of_its_commit() -> None:
    begin = decode(b"B" + struct.pack(">QqI", 0x1_0000_0010, 1_000_000, 731))
    assert begin == Begin(0x1_0000_0010, 946_684_801_000_000, 731)
    commit = decode(b"C" + struct.pack(">BQQq", 0, 0x10, 0x40, 0))
    assert commit == Commit(0x40, 946_684_800_000_000)


def test_values_stay_as_they_were_sent() -> None:
    old, new = row(b"I" + OID + b"N" + tuple_of("1", None, "é\t\\"))
    assert (old, new) == (None, [piece_of("1"), NULL, piece_of("é\t\\")])
    assert new is not None
    assert [text_of(piece) for piece in new] == ["1", None, "é\t\\"]
    assert row(b"D" + OID + b"K" + tuple_of("1", None)) == ([piece_of("1"), NULL], None)


def test_a_long_value_is_as_long_as_it_says() -> None:
    long = "x" * 70_000
    assert row(b"I" + OID + b"N" + tuple_of(long, "1")) == (None, [piece_of(long), piece_of("1")])


def test_a_row_names_its_table() -> None:
    assert oid_of(b"D" + OID + b"K" + tuple_of("1")) == 16_400


def test_an_update_has_an_old_row_where_its_key_changed() -> None:
    old, new = row(b"U" + OID + b"N" + tuple_of("1", "x"))
    assert new == [piece_of("1"), piece_of("x")]
    assert old is new, "nothing was sent of the old row"
    moved = row(b"U" + OID + b"K" + tuple_of("1", None) + b"N" + tuple_of("2", b"u"))
    assert moved == ([piece_of("1"), NULL], [piece_of("2"), None])


def test_an_old_row_brings_what_did_not_change() -> None:
    """A long key, which is sent with the old row; and under FULL every value, NULL as well."""
    _, new = row(b"U" + OID + b"K" + tuple_of("long", None) + b"N" + tuple_of(b"u", b"u"))
    assert new == [piece_of("long"), None]
    _, new = row(b"U" + OID + b"O" + tuple_of("1", None, "was") + b"N" + tuple_of("1", b"u", b"u"))
    assert new == [piece_of("1"), NULL, piece_of("was")]


def test_a_table_says_its_columns_and_its_identity() -> None:
    columns = b"\x01id\0" + struct.pack(">Ii", 20, -1) + b"\x00n\0" + struct.pack(">Ii", 1700, 0x60006)
    sent = decode(b"R" + OID + b"public\0t\0d" + struct.pack(">H", 2) + columns)
    assert sent == TableSent(
        16_400, "public", "t", "d", (ColumnSent("id", 20, -1, key=True), ColumnSent("n", 1700, 0x60006, key=False))
    )


def test_a_truncate_names_its_tables() -> None:
    assert decode(b"T" + struct.pack(">IB", 2, 1) + struct.pack(">II", 7, 9)) == Truncate((7, 9))


def test_what_says_nothing_of_rows_is_passed_over() -> None:
    assert decode(b"Y" + OID + b"public\0mood\0") == Other("Y")
    assert decode(b"O" + bytes(8) + b"name\0") == Other("O")


def test_what_the_protocol_does_not_have_is_refused() -> None:
    with pytest.raises(DecodingError):
        decode(b"S\0\0\0\1")
    with pytest.raises(DecodingError):
        row(b"I" + OID + b"N" + struct.pack(">H", 1) + b"b")


@pytest.mark.parametrize("text", ["0/0", "16/B374D848", "7FFFFFFF/FFFFFFFF", "1/A"])
def test_places_are_printed_as_they_are_read(text: str) -> None:
    assert lsn_text(lsn_of(text)) == text
