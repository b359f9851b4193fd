"""Read CSV bodies. Every bulk load is staged as Postgres CSV text, in which an empty field is NULL unless quoted.

Only the header row is parsed here. The rest passes unchanged, and Postgres parses it.
"""

import csv
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from service.domain.errors import Invalid

HEADER_BYTES_MAX: Final = 128 << 10
"""A header with Postgres's maximum of 1,600 columns of 63 bytes has 102,400 bytes. It is parsed on the event loop."""
ROW_BYTES_MAX: Final = 16 << 20
"""Postgres needs several times the size of a row in memory. With an unclosed quote, the rest of the body is one row."""
LINE_BYTES_MAX: Final = 4 << 20
"""The line of a row is looked for in so much of a body, which takes half a second if each other byte is a quote."""
_PIECE_BYTES: Final = 64 << 10
_BOM: Final = b"\xef\xbb\xbf"
_TO_ROW_END: Final = re.compile(rb'[^"\r\n]*+(?:"[^"]*+"[^"\r\n]*+)*+[\r\n]')
"""A row's end: a line break after text without quotes and whole quoted fields.

The quantifiers are possessive, so no match is tried twice. The pattern has no groups that create objects. Otherwise a
chunk of quotes only would block the event loop for a tenth of a second.
"""


async def opened(chunks: AsyncIterator[bytes]) -> tuple[list[str], AsyncIterator[bytes]]:
    """Read the header row. Return its names and an iterator over the rest. Raises Invalid."""
    head = bytearray()
    end, quoted = -1, False
    async for chunk in chunks:
        left = HEADER_BYTES_MAX + 1 - len(head)
        end, quoted = _line_end(chunk[:left], quoted=quoted)
        end = end if end < 0 else len(head) + end
        head += chunk
        if end >= 0:
            break
        if len(head) > HEADER_BYTES_MAX:
            raise Invalid(f"the header row is longer than {HEADER_BYTES_MAX} bytes")
    if not head:
        raise Invalid("the body is empty: CSV begins with a header row")
    line, rest = (bytes(head[:end]), bytes(head[end + 1 :])) if end >= 0 else (bytes(head), b"")
    return _names(line), _bounded(_following(rest, chunks))


def line_of(path: Path, row: int) -> int | None:
    """Return the line, from 1, on which a row begins, or None beyond `LINE_BYTES_MAX`. Rows are counted from 1 behind
    the header.

    As for Postgres, a quote anywhere begins or ends quoted text. No row is kept: one of 90 million fields took 9 GB.
    """
    line, quoted = 1, False
    with path.open("rb") as file:
        for _ in range(LINE_BYTES_MAX // _PIECE_BYTES):
            for at, part in enumerate(file.read(_PIECE_BYTES).replace(b'""', b"").split(b'"')):
                quoted ^= at > 0
                breaks = part.count(b"\n")
                if not quoted and breaks >= row:
                    return line + row
                line, row = line + breaks, row if quoted else row - breaks
    return None


_STOPS: Final = re.compile(rb'["\n]')


def _line_end(chunk: bytes, *, quoted: bool) -> tuple[int, bool]:
    """Return the index of the first line's end, or -1 without an end, and whether the chunk ends within quotes.

    A line break within quotes does not end the line. Every byte is scanned once.
    """
    for stop in _STOPS.finditer(chunk):
        if stop[0] == b'"':
            quoted = not quoted
        elif not quoted:
            return stop.start(), False
    return -1, quoted


def _names(line: bytes) -> list[str]:
    try:
        text = line.removeprefix(_BOM).decode().removesuffix("\r")
        rows = list(csv.reader([text], strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise Invalid(f"the header row cannot be read: {error}") from error
    if not rows or not rows[0]:
        raise Invalid("the header row is empty")
    return rows[0]


async def _following(rest: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if rest:
        yield rest
    async for chunk in chunks:
        yield chunk


async def _bounded(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the body after the header. Raises Invalid if a row has more than `ROW_BYTES_MAX` bytes."""
    size, quoted = 0, False
    async for chunk in chunks:
        first = _first_end(chunk, quoted=quoted)
        size += len(chunk) if first is None else first
        quoted ^= chunk.count(b'"') % 2 == 1
        if size > ROW_BYTES_MAX:
            raise Invalid(f"a row is longer than {ROW_BYTES_MAX} bytes, or a quote is not closed")
        if first is not None:
            # Quotes pair up from either side, so the end nearest to the chunk's end is found in its reverse.
            size = _first_end(chunk[::-1], quoted=quoted) or 0
        yield chunk


def _first_end(chunk: bytes, *, quoted: bool) -> int | None:
    """Return how many bytes come before the first end of a row, or None. `quoted`: the chunk begins within quotes."""
    start = chunk.find(b'"') + 1 if quoted else 0
    found = None if quoted and not start else _TO_ROW_END.match(chunk, start)
    return None if found is None else found.end() - 1
