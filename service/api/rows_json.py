"""Send the rows of a result as JSON, a piece at a time, so that neither their number nor their width stalls others.

The encoder holds the interpreter lock during each call, and a call for one value of 60 MB took seconds. Pieces are
encoded as fast as the client takes them, so that only the rows themselves stay in memory (I8, I13).
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from service.domain.uploading import Kept, Spool

Rows = Sequence[Sequence[Any]]
VALUES: Final = 2_000
"""The values of a piece, which are encoded in a few milliseconds."""
CHARACTERS: Final = 128 << 10
"""The characters of a piece, besides those of escapes."""
_VALUE: Final = 24
"""Counted for each value in addition to its characters."""
_LIST: Final = 96
"""Counted for each list and each row."""
_JSON: Final = "application/json"


@dataclass(slots=True)
class Unsent:
    """The bytes of answers that clients have not taken yet, and the turn to work on one of them.

    Each thread that encodes takes its share of the interpreter from the event loop.
    """

    spool: Spool
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


def answer(
    head: Mapping[str, Any],
    rows: Rows,
    unsent: Unsent,
    caller: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the response with the JSON object `head` and its member `rows`.

    Rows of more than a piece count for their caller in `unsent` until they are sent.
    """
    if _size(rows, most=CHARACTERS) <= CHARACTERS:
        return Response(b"".join(pieces(head, rows)), status_code=status, media_type=_JSON, headers=headers)
    return _Large(head, rows, unsent, caller, status, headers)


class _Large(StreamingResponse):
    """Rows of several pieces."""

    def __init__(
        self,
        head: Mapping[str, Any],
        rows: Rows,
        unsent: Unsent,
        caller: str,
        status: int,
        headers: Mapping[str, str] | None,
    ) -> None:
        super().__init__(self._pieces(head), status_code=status, media_type=_JSON, headers=headers)
        self.rows, self.unsent, self.caller = rows, unsent, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the rows. Raises what `Spool.check` raises, before anything is sent."""
        with Kept(self.unsent.spool, self.caller) as held:
            async with self.unsent.turn:
                size = await asyncio.to_thread(_size, self.rows)
            held.take(size)
            await super().__call__(scope, receive, send)

    async def _pieces(self, head: Mapping[str, Any]) -> AsyncIterator[bytes]:
        left = pieces(head, self.rows)
        while True:
            async with self.unsent.turn:
                piece = await asyncio.to_thread(next, left, b"")
            if not piece:
                return
            yield piece


def pieces(head: Mapping[str, Any], rows: Rows) -> Iterator[bytes]:
    """Yield the JSON object `head` with the member `rows`, in pieces of about `CHARACTERS`."""
    parts: list[str] = []
    size = 0
    for text in _object(head, rows):
        parts.append(text)
        size += len(text)
        if size >= CHARACTERS:
            yield "".join(parts).encode()
            parts, size = [], 0
    yield "".join(parts).encode()


def _object(head: Mapping[str, Any], rows: Rows) -> Iterator[str]:
    yield f'{_text(head)[:-1]},"rows":'
    yield from _list(rows, VALUES // max(len(rows[0]), 1) if rows else 1)
    yield "}"


def _list(values: Sequence[Any], step: int) -> Iterator[str]:
    """Yield a list in texts of `step` values, which are small."""
    yield "["
    step = max(step, 1)
    for first in range(0, len(values), step):
        some = values[first : first + step]
        if first:
            yield ","
        if _size(some, most=CHARACTERS) <= CHARACTERS:
            yield _text(some)[1:-1]
            continue
        for place, value in enumerate(some):
            if place:
                yield ","
            yield from _value(value)
    yield "]"


def _value(value: object) -> Iterator[str]:
    if isinstance(value, str) and len(value) > CHARACTERS:
        yield '"'
        for first in range(0, len(value), CHARACTERS):
            yield _text(value[first : first + CHARACTERS])[1:-1]
        yield '"'
    elif isinstance(value, list | tuple):
        yield from _list(cast("Sequence[Any]", value), VALUES)
    else:
        yield _text(value)


def _size(value: object, *, most: int = sys.maxsize) -> int:
    """Return about how many bytes a value takes in memory. None of it is looked at beyond `most`."""
    if isinstance(value, str):
        return _VALUE + (len(value) if value.isascii() else sys.getsizeof(value))
    if not isinstance(value, list | tuple):
        return _VALUE
    size = _LIST
    for one in cast("Sequence[Any]", value):
        size += _size(one, most=most - size)
        if size > most:
            break
    return size


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
