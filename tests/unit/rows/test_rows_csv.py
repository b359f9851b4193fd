"""CSV bodies: the header is read by name, everything after it is Postgres's to read."""

import tracemalloc
from collections.abc import AsyncIterator

import pytest
from hypothesis import given as drawn
from hypothesis import strategies

from service.domain.errors import Invalid
from service.operations.rows import bulk, csv_text
from service.operations.rows.csv_text import HEADER_BYTES_MAX, ROW_BYTES_MAX, opened
from service.protocol.quoting import array_literal, csv_field


async def in_pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("body", "names", "rest"),
    [
        (b"a,b\n1,2\n", ["a", "b"], b"1,2\n"),
        (b"a,b\r\n1,2\r\n", ["a", "b"], b"1,2\r\n"),
        (b"\xef\xbb\xbfa,b\n1,2", ["a", "b"], b"1,2"),
        (b'"a,""x""\ny",b\n"1\n",2\n', ['a,"x"\ny', "b"], b'"1\n",2\n'),
        (b"a", ["a"], b""),
        (b"a\n", ["a"], b""),
        (b"a\n\n", ["a"], b"\n"),
        ("é,ü\n".encode(), ["é", "ü"], b""),
    ],
)
async def test_the_header_is_taken_off(body: bytes, names: list[str], rest: bytes, size: int) -> None:
    given, following = await opened(in_pieces(body, size))
    assert given == names
    assert b"".join([chunk async for chunk in following]) == rest


@pytest.mark.parametrize("body", [b"", b"\n1\n", b'a,"b\n', b"\xff\n1\n", b'a"b"c,"d"e\n'])
async def test_a_header_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        await opened(in_pieces(body, 4))


async def test_a_header_without_an_end_is_given_up() -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1 << 16
            yield b"a" * (1 << 16)

    with pytest.raises(Invalid, match="longer"):
        await opened(endless())
    assert read <= HEADER_BYTES_MAX + (1 << 17)


async def test_a_header_of_postgres_s_longest_names_is_read_and_no_longer_one() -> None:
    """I13: a megabyte of quotes or commas was looked at on the event loop, one by one."""
    names = [f"{n:04}".ljust(63, "x") for n in range(1600)]
    given, _ = await opened(in_pieces(",".join(f'"{name}"' for name in names).encode() + b"\n1", 1 << 16))
    assert given == names
    for piece in (b'"', b",", b"a"):
        with pytest.raises(Invalid, match=f"longer than {128 << 10} bytes"):
            await opened(in_pieces(piece * (HEADER_BYTES_MAX + 1) + b"\n1", 1 << 20))


def test_more_columns_than_a_table_can_have_are_refused_by_their_number() -> None:
    """They were matched, on the event loop, with the columns of the table."""
    with pytest.raises(Invalid, match="the rows have 100000 columns; a table has at most 1600"):
        bulk.matched((), [""] * 100_000)


@pytest.mark.parametrize(
    "row", [b'1,"' + b"x" * 99, b'1,"' + b"\n\r" * 50, b"1," + b"x" * 99, b'1,""x"' + b'""' * 50 + b"\n", b'"\n"' * 40]
)
async def test_a_row_that_does_not_end_is_given_up(row: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text, "ROW_BYTES_MAX", 64)
    _, following = await opened(in_pieces(b"a,b\n" + row, 7))
    with pytest.raises(Invalid, match="a row is longer than 64 bytes, or a quote is not closed"):
        _ = [chunk async for chunk in following]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("row", [b'1,"x\n"\n', b"1,x\r\n", b"1,x\r", b'"""",""\n', b'"a""b","\r\n"\n'])
async def test_rows_that_end_may_be_many(row: bytes, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text, "ROW_BYTES_MAX", 64)
    _, following = await opened(in_pieces(b"a,b\n" + row * 100, size))
    assert b"".join([chunk async for chunk in following]) == row * 100


def test_null_and_the_empty_text_differ() -> None:
    assert (csv_field(None), csv_field(""), csv_field('a"b\n')) == ("", '""', '"a""b\n"')


def test_array_elements_are_quoted() -> None:
    assert array_literal([None, "", "NULL", 'a"\\', "{,}"]) == '{NULL,"","NULL","a\\"\\\\","{,}"}'


@pytest.mark.timeout(60)
async def test_s3_every_byte_of_a_header_is_looked_at_once() -> None:
    """A quote and 100,000 line breaks: every line break was compared with all that stood before it, for minutes."""
    with pytest.raises(Invalid, match="the header row cannot be read"):
        await opened(in_pieces(b'"' + b"\n" * 100_000, 65_536))


@drawn(
    body=strategies.text('"\n\rx', max_size=60).map(str.encode),
    size=strategies.integers(1, 9),
    most=strategies.integers(9, 20),
)
async def test_a_row_is_as_long_as_its_bytes_whatever_chunks_it_comes_in(body: bytes, size: int, most: int) -> None:
    """A row of 17 MB was taken if its end came in a chunk before the count passed the limit."""
    held, quoted, too_long = 0, False, False
    for byte in body:
        quoted ^= byte == ord('"')
        held = 0 if byte in b"\r\n" and not quoted else held + 1
        too_long |= held > most
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(csv_text, "ROW_BYTES_MAX", most)
        _, following = await opened(_first(b"a\n", in_pieces(body, size)))
        if too_long:
            with pytest.raises(Invalid, match="a row is longer"):
                _ = [chunk async for chunk in following]
        else:
            assert b"".join([chunk async for chunk in following]) == body


@pytest.mark.parametrize(("over", "taken"), [(0, True), (1, False)])
async def test_a_row_has_its_whole_size(over: int, taken: bool) -> None:
    row = b'1,"' + b"x" * (ROW_BYTES_MAX - 4 + over) + b'"'
    _, following = await opened(in_pieces(b"a,b\n" + row + b"\n", 256 << 10))
    try:
        assert b"".join([chunk async for chunk in following]) == row + b"\n"
    except Invalid:
        assert not taken
    else:
        assert taken


async def _first(head: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for chunk in chunks:
        yield chunk


@pytest.mark.parametrize("piece", [b'"', b'"x",', b'""\n', b"\n", b'"\n'])
async def test_a_chunk_of_quotes_is_not_taken_apart(piece: bytes) -> None:
    """I13: a quarter of a megabyte of quotes became as many objects, and held up the event loop for 0.1 s each time."""
    chunk = piece * ((1 << 18) // len(piece))
    _, following = await opened(_first(b"a\n", in_pieces(chunk, len(chunk))))
    tracemalloc.start()
    try:
        assert [len(one) async for one in following] == [len(chunk)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(chunk)
