"""Unpack gzip bodies while they arrive, in pieces of bounded size, however much a chunk unpacks to (I8)."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from service.domain.errors import Invalid
from service.turns import Turns

PIECE_BYTES: Final = 1 << 18
PACKED: Final = b"\x1f\x8b"
"""How gzip begins, and no text in UTF-8."""
_GZIP: Final = 16 + zlib.MAX_WBITS
"""Tells zlib to read the header of gzip."""


async def unpacked(packed: AsyncIterator[bytes], pieces: Turns) -> AsyncGenerator[bytes]:
    """Yield the content. A stream may have several members, as of files that were appended to each other.

    Each piece takes a turn: otherwise a few bodies of zeros take all processors, and the event loop has no time (I13).

    Raises Invalid if it is no gzip, or ends within a member.
    """
    member, begun = zlib.decompressobj(wbits=_GZIP), False
    async for chunk in packed:
        left, full = chunk, False
        # A full piece may have left more output than input.
        while left or full:
            begun = True
            try:
                async with pieces.turn():
                    piece = await asyncio.to_thread(member.decompress, left, PIECE_BYTES)
            except zlib.error as error:
                raise Invalid(f"the body is not the gzip that its Content-Encoding says: {error}") from error
            if piece:
                yield piece
            left, full = member.unconsumed_tail, len(piece) == PIECE_BYTES
            if member.eof:
                left, full = member.unused_data, False
                member, begun = zlib.decompressobj(wbits=_GZIP), False
    if begun:
        raise Invalid("the body ends within its gzip stream")


async def text(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the chunks of a text. Raises Invalid if they are packed."""
    first = True
    async for chunk in chunks:
        if first and chunk.startswith(PACKED):
            raise Invalid("the body is packed: send it with Content-Encoding: gzip")
        first = False
        yield chunk
