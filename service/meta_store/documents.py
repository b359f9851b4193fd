"""JSON documents in columns: pydantic values in, pydantic values out, without a detour over Python dictionaries."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel
from sqlalchemy import Column, ColumnElement, TableValuedAlias, Text, any_, cast, func, literal
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.elements import KeyedColumnElement
from sqlalchemy.types import UserDefinedType

# An escaped NUL that is not itself escaped. Postgres cannot store one, and messages of foreign libraries may hold it.
_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def stored(value: BaseModel) -> ColumnElement[Any]:
    """Return `value` as a jsonb expression."""
    return stored_text(value.model_dump_json())


def stored_text(text: str) -> ColumnElement[Any]:
    """Return a JSON text as a jsonb expression."""
    # Looked for first: the pattern looks behind every character of what may be megabytes.
    kept = _NUL.sub(rf"\1{_REPLACEMENT}", text) if "\\u0000" in text else text
    return cast(literal(kept, Text), JSONB)


def text_of(column: KeyedColumnElement[Any] | ColumnElement[Any]) -> ColumnElement[str]:
    """Return a jsonb column as JSON text, which pydantic reads faster than what the driver would make of it."""
    return cast(column, Text)


def printable(text: str) -> str:
    """Return `text` without what a text column cannot hold."""
    return text.replace("\x00", _REPLACEMENT)


def document(value: Mapping[str, Any]) -> ColumnElement[Any]:
    """Return a JSON object as a jsonb expression."""
    return stored_text(json.dumps(dict(value), ensure_ascii=True, allow_nan=False))


def recordset(rows: Iterable[Mapping[str, Any]], *columns: Column[Any]) -> TableValuedAlias:
    """Return JSON objects as a table called `new` with these columns: many rows in one parameter of one statement.

    The server takes it for a hundred rows. An update that joins it says with `among` too which rows it is about, or a
    small table would be read whole.
    """
    text = json.dumps([dict(row) for row in rows], ensure_ascii=True, allow_nan=False)
    return func.jsonb_to_recordset(stored_text(text)).table_valued(*columns).render_derived("new", with_types=True)


def among(column: ColumnElement[int], ids: Iterable[int]) -> ColumnElement[bool]:
    """Return whether the column is one of `ids`: one parameter however many they are, and the server knows how many."""
    return column == any_(literal(list_of(ids), Ids()))


class Ids(UserDefinedType[str]):
    """The text of an array of ids, which the server takes for one when it is bound. Cast from a text it would be read
    anew for every row that it is compared with.
    """

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_: object) -> str:
        return "BIGINT[]"


def list_of(ids: Iterable[int]) -> str:
    """Return ids as the text of an array, which the driver sends as it is: it would look at every number of a list."""
    return f"{{{','.join(map(str, sorted(ids)))}}}"
