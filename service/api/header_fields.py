"""Parse the header fields, trailers and chunks of requests in linear time, and at most a number of fields.

The expressions of h11 take time quadratic in the blanks of a line that is malformed behind them: trailers of 256 kB
would keep the event loop for minutes, and a stranger may send them. h11 also parses as many trailers as there are.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from h11 import (
    LocalProtocolError,
    _readers,  # pyright: ignore[reportPrivateUsage] - h11 offers no other place
)

FIELDS_MAX: Final = 100
"""Maximum of fields in a request's head or behind its body, and of parameters in its query. Each costs some
microseconds, also an empty one.
"""
TOO_MANY_FIELDS: Final = f"a request has at most {FIELDS_MAX} header fields"
_TOLD_BYTES: Final = 100
_FIELD: Final = re.compile(
    rb"(?P<name>[-!#$%&'*+.^_`|~0-9a-zA-Z]++):[ \t]*+(?P<value>(?:[^\x00\s]++(?:[ \t]++[^\x00\s]++)*+)?)[ \t]*+"
)
"""`header_field` of RFC 7230, as h11 has it, with possessive quantifiers: nothing that one took can begin the next."""
_CHUNK: Final = re.compile(rb"(?P<chunk_size>[0-9A-Fa-f]{1,20})(?P<chunk_ext>;[^\r\n]*+)?[ \t]*+\r\n")
"""`chunk_header` of h11 in the same way."""


def bound_lines() -> None:
    """Have h11 parse lines by this module."""
    _readers.chunk_header_re = _CHUNK
    _readers._decode_header_lines = _decoded  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as above


def _decoded(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield names and values. Raises LocalProtocolError, which h11 turns into a RemoteProtocolError."""
    given = list(islice(lines, FIELDS_MAX + 1))
    if len(given) > FIELDS_MAX:
        raise LocalProtocolError(TOO_MANY_FIELDS)
    for line in _readers._obsolete_line_fold(given):  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as above
        field = _FIELD.fullmatch(line)
        if field is None:
            raise LocalProtocolError(f"illegal header line: {bytes(line[:_TOLD_BYTES])!r}")
        yield field["name"], field["value"]
