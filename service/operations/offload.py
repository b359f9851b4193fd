"""Parse and bind expensive statements in another process, so that they do not block the event loop."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, ParamSpec, TypeVar

from service.ports.parsing import Parsers
from service.protocol.relation import Relation
from service.sql.dml.bind import BoundInsert, bind_constants, bind_insert
from service.sql.parse import parse
from service.sql.statements.dml import Insert, parse_constants
from service.sql.statements.statement import Statement
from service.sql.text.tree import Tree
from service.sql.text.weight import SHORT, is_light

LONG: Final = 32_000
"""Constants in so many characters take some 10 milliseconds."""
P = ParamSpec("P")
T = TypeVar("T")


async def beside(parsers: Parsers, text: str, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a pure parser or binder and return its result: inline if the text is light, otherwise in another process.

    Raises the errors of `read`.
    """
    if is_light(text):
        return read(*args, **kwargs)
    return await parsers.run(len(text), read, *args, **kwargs)


async def beside_views(
    parsers: Parsers, text: str, views: Mapping[str, Tree], read: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a pure binder of a query that may read logical views. Without views it is the same as `beside`.

    If each view reads the previous one twice, the work grows exponentially with the depth of the views. Such a binder
    therefore always runs in another process.
    """
    if not views:
        return await beside(parsers, text, read, *args, **kwargs)
    length = len(text) + sum(len(view.text) for view in views.values())
    return await parsers.run(length, read, *args, **kwargs)


async def parsed(parsers: Parsers, text: str) -> Statement:
    """Parse a text with one statement. Raises Invalid with the position of the fault."""
    constants = await _linear(parsers, text, parse_constants, text)
    return await beside(parsers, text, parse, text) if constants is None else constants


async def bound_insert(
    parsers: Parsers, text: str, statement: Insert, relations: Mapping[str, Relation]
) -> BoundInsert:
    """Bind an INSERT. Raises Invalid, NotFound."""
    bound = await _linear(parsers, text, bind_constants, statement, relations)
    return await beside(parsers, text, bind_insert, statement, relations) if bound is None else bound


async def _linear(parsers: Parsers, text: str, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Parse plain constants, in a thread or in another process if the text is long.

    The time is linear in the length. But many long texts at once would leave no time for anything else.
    """
    if len(text) <= SHORT:
        return read(*args, **kwargs)
    if len(text) <= LONG:
        return await asyncio.to_thread(read, *args, **kwargs)
    return await parsers.run(len(text), read, *args, **kwargs)
