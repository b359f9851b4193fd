"""Parse and bind expensive statements in another process, so that they do not block the event loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Concatenate, Final, ParamSpec, TypeVar

from service.ports.parsing import Parsers
from service.protocol.relation import Relation
from service.sql.dml.bind import BoundInsert, bind_constants, bind_insert
from service.sql.parse import parse
from service.sql.queries.drafts import Draft
from service.sql.queries.plan import plan_query
from service.sql.queries.planner import TooManySteps
from service.sql.statements.dml import Insert, parse_constants
from service.sql.statements.statement import Statement
from service.sql.text.tokens import mentioned, needs_tokens
from service.sql.text.tree import Tree
from service.sql.text.weight import SHORT, is_light

LONG: Final = 32_000
"""Constants in so many characters take some 10 milliseconds."""
INLINE_STEPS: Final = 5_000
"""So many steps of planning take some 100 milliseconds. Views in a few levels take some hundred steps."""
INLINE_CHARACTERS: Final = 8_000
"""Expressions of so many characters are finished in some 50 milliseconds."""
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
    return await apart(parsers, text, views, read, *args, **kwargs)


async def names_in(parsers: Parsers, text: str) -> frozenset[str]:
    """Return `mentioned` of a text. Raises Invalid."""
    return await beside(parsers, text, mentioned, text) if needs_tokens(text) else mentioned(text)


async def apart(
    parsers: Parsers, text: str, views: Mapping[str, Tree], read: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a pure binder in another process, because its work may grow exponentially with the levels of queries."""
    return await parsers.run(len(text) + sum(len(view.text) for view in views.values()), read, *args, **kwargs)


async def planned(
    parsers: Parsers,
    text: str,
    query: Tree,
    relations: Mapping[str, Relation],
    views: Mapping[str, Tree],
    names: Sequence[str],
) -> tuple[Draft, ...]:
    """Plan the query of a statement: inline if it takes few steps, otherwise in another process.

    Raises the errors of `plan_query`, but TooManySteps.
    """
    if not views and is_light(text):
        with suppress(TooManySteps):
            return plan_query(query, relations, views, names, INLINE_STEPS)
    return await apart(parsers, text, views, plan_query, query, relations, views, names)


async def typed(
    parsers: Parsers, draft: Draft, read: Callable[Concatenate[Draft, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a step of finishing a draft: inline if its expressions are short, otherwise in another process."""
    size = sum(map(len, draft.trees))
    if size <= INLINE_CHARACTERS:
        return read(draft, *args, **kwargs)
    return await parsers.run(size, read, draft, *args, **kwargs)


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
