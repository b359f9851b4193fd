"""Parse the JSON of a body once, on the event loop, in bounded time (I13).

The text of a statement is one long string, which takes a millisecond per megabyte. Many small members take a hundred
times as long. A thread would not help, because Python's parser keeps the interpreter lock. So their number and size are
bounded instead.
"""

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute

SMALL: Final = 128 << 10
"""The largest body, in characters, whose values are not bounded."""
MEMBERS_MAX: Final = 100
"""How many members the object of a body may have. No call needs nearly as many."""
_PARSED: Final = "tidefill.json"
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()


class UnreadableError(Exception):
    """The body has too many members, or too much besides texts. The message says which."""


class ParsedRoute(APIRoute):
    """A route that uses the JSON parsed by the middleware, instead of parsing the body again."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(_Parsed(request.scope, request.receive))

        return handled


class _Parsed(Request):
    async def json(self) -> Any:
        return self.scope[_PARSED] if _PARSED in self.scope else await super().json()


def read_once(scope: Any, body: bytes) -> None:
    """Parse the JSON of a body and keep it for the route.

    Raises ValueError or RecursionError where the body is not valid JSON, and UnreadableError.
    """
    text = body.decode()
    value = json.loads(text) if len(text) <= SMALL else loads_long(text)
    if isinstance(value, dict) and len(value) > MEMBERS_MAX:  # pyright: ignore[reportUnknownArgumentType]
        raise UnreadableError(f"the body has more than {MEMBERS_MAX} members")
    scope[_PARSED] = value


def loads_long(text: str) -> Any:
    """Return what `json.loads` returns. Raises JSONDecodeError as it does.

    Raises UnreadableError where an object has more than `MEMBERS_MAX` members, or where more than `SMALL` characters
    belong to values that are not strings.
    """
    at = _after_blanks(text, 0)
    if not text.startswith("{", at):
        value, at, _ = _value(text, at, SMALL)
        return _alone(text, at, value)
    members: dict[str, Any] = {}
    left, count = SMALL, 0
    at = _after_blanks(text, at + 1)
    if text.startswith("}", at):
        return _alone(text, at + 1, members)
    while True:
        if not text.startswith('"', at):
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, at = _DECODER.raw_decode(text, at)
        at = _after_blanks(text, _past(":", text, at))
        members[name], at, left = _value(text, at, left)
        count += 1
        if count > MEMBERS_MAX:
            raise UnreadableError(f"the body has more than {MEMBERS_MAX} members")
        at = _after_blanks(text, at)
        if text.startswith("}", at):
            return _alone(text, at + 1, members)
        at = _after_blanks(text, _past(",", text, at))


def _value(text: str, at: int, left: int) -> tuple[Any, int, int]:
    """Return the value that begins at `at`, the place after it, and how many of `left` characters remain for others.

    A string costs none of them.
    """
    if text.startswith('"', at):
        return *_DECODER.raw_decode(text, at), left
    piece = text[at : at + left + 1]
    try:
        value, size = _DECODER.raw_decode(piece)
    except json.JSONDecodeError as error:
        if len(piece) > left:
            raise _too_much() from None
        raise json.JSONDecodeError(error.msg, text, at + error.pos) from None
    if size > left:
        raise _too_much()
    return value, at + size, left - size


def _too_much() -> UnreadableError:
    return UnreadableError(f"besides the text of its statement a body has at most {SMALL} bytes")


def _past(sign: str, text: str, at: int) -> int:
    at = _after_blanks(text, at)
    if not text.startswith(sign, at):
        raise json.JSONDecodeError(f"Expecting '{sign}' delimiter", text, at)
    return at + 1


def _alone(text: str, at: int, value: Any) -> Any:
    """Return the value if no text follows it, otherwise raise JSONDecodeError."""
    at = _after_blanks(text, at)
    if at != len(text):
        raise json.JSONDecodeError("Extra data", text, at)
    return value


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return at if found is None else found.end()
