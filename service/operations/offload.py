"""Parse and bind statements that may be expensive in another process, so that they do not block the event loop."""

import asyncio
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from service.ports.parsing import Parsers
from service.protocol.relation import Relation
from service.sql.dml.bind import BoundInsert, bind_constants, bind_insert
from service.sql.parse import parse
from service.sql.statements.dml import Insert, parse_constants
from service.sql.statements.statement import Statement
from service.sql.text.weight import SHORT, is_light

P = ParamSpec("P")
T = TypeVar("T")


async def beside(parsers: Parsers, text: str, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what reading a text gives; `read` is pure. Raises what it does."""
    if is_light(text):
        return read(*args, **kwargs)
    return await parsers.run(len(text), read, *args, **kwargs)


async def parsed(parsers: Parsers, text: str) -> Statement:
    """Return the one statement that a text holds. Raises Invalid with its place."""
    constants = await _linear(text, parse_constants, text)
    return await beside(parsers, text, parse, text) if constants is None else constants


async def bound_insert(
    parsers: Parsers, text: str, statement: Insert, relations: Mapping[str, Relation]
) -> BoundInsert:
    """Return what an INSERT means. Raises Invalid and NotFound."""
    bound = await _linear(text, bind_constants, statement, relations)
    return await beside(parsers, text, bind_insert, statement, relations) if bound is None else bound


async def _linear(text: str, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Plain constants take time that is linear in their length: a thread is enough, and needs no turn."""
    if len(text) <= SHORT:
        return read(*args, **kwargs)
    return await asyncio.to_thread(read, *args, **kwargs)
