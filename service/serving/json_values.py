"""Convert Postgres texts of values to JSON: to a number if JSON keeps it exactly, otherwise to a string. Pure.

The text is always exact, so a value that is not converted is still correct.
"""

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from psycopg import postgres

EXACT_INTEGER_MAX: Final = 1 << 53
"""Most JSON readers store numbers as doubles, which alter larger integers."""

Convert = Callable[[str], Any]

# Possessive, because a repeated choice keeps 140 bytes for each of its characters otherwise: 8 GB for a value of 62 MB.
_TOKEN: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"|([{},])|([^{},"]++)', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def _integer(text: str) -> int | str:
    value = int(text)
    return value if abs(value) <= EXACT_INTEGER_MAX else text


def _float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _boolean(text: str) -> bool:
    return text == "t"


_SCALARS: Final[dict[str, Convert]] = {
    "bool": _boolean,
    "int2": _integer,
    "int4": _integer,
    "int8": _integer,
    "oid": _integer,
    "float4": _float,
    "float8": _float,
}


@lru_cache(maxsize=1024)
def converter(type_oid: int) -> Convert:
    """Return the function that converts texts of a type to JSON values."""
    known = postgres.types.get(type_oid)
    if known is None:
        return str
    element = _SCALARS.get(known.name, str)
    if not is_array(type_oid):
        return element
    return (lambda text: _array(text, element)) if known.delimiter == "," else str


def is_array(type_oid: int) -> bool:
    """Return whether a type is an array."""
    known = postgres.types.get(type_oid)
    return known is not None and known.array_oid == type_oid


def _array(text: str, element: Convert) -> list[Any]:
    """Parse an array's text with any number of dimensions. Bounds that do not begin at 1 are dropped."""
    if '"' not in text and text.rfind("{") == 0:
        # One dimension without quotes is ten times faster so.
        return [None if one == "NULL" else element(one) for one in text[1:-1].split(",") if one]
    root: list[Any] = []
    open_lists = [root]
    # Not `findall`, because the pieces of a long array take a hundred times its size.
    for token in _TOKEN.finditer(text, text.index("{")):
        quoted, mark, bare = token.groups()
        if mark == "{":
            inner: list[Any] = []
            open_lists[-1].append(inner)
            open_lists.append(inner)
        elif mark == "}":
            open_lists.pop()
        elif bare:
            open_lists[-1].append(None if bare == "NULL" else element(bare))
        elif not mark:
            open_lists[-1].append(element(_ESCAPED.sub(r"\1", quoted)))
    return root[0]
