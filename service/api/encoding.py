"""Encode large results as JSON in a thread and in slices of rows, so that they do not block the event loop.

The encoder holds the interpreter lock during each call; for a whole result that would be a second.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

_INLINE_VALUES: Final = 2_000
_SLICE_VALUES: Final = 5_000
"""So many values are encoded in a few milliseconds."""


async def encoded(head: Mapping[str, Any], rows: Sequence[Sequence[Any]]) -> bytes:
    """Return the JSON object `head` with the member `rows`."""
    if sum(map(len, rows[:1])) * len(rows) <= _INLINE_VALUES:
        return _encoded(head, rows)
    return await asyncio.to_thread(_encoded, head, rows)


def _encoded(head: Mapping[str, Any], rows: Sequence[Sequence[Any]]) -> bytes:
    step = max(_SLICE_VALUES // max(len(rows[0]), 1), 1) if rows else 1
    parts = (_json(rows[first : first + step])[1:-1] for first in range(0, len(rows), step))
    return _json(head)[:-1] + b',"rows":[' + b",".join(parts) + b"]}"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
