"""Store pydantic values as JSON documents and read them back, without building Python dictionaries in between."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel
from sqlalchemy import Column, ColumnElement, TableValuedAlias, Text, any_, case, cast, func, literal
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.sql.elements import KeyedColumnElement
from sqlalchemy.types import UserDefinedType

from service.domain.cutting import KEPT_CHARACTERS, MARK

# An escaped NUL whose backslash is not itself escaped. Postgres cannot store a NUL, and messages of other libraries
# may contain one.
_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def stored(value: BaseModel) -> ColumnElement[Any]:
    """Return `value` as a jsonb expression."""
    return stored_text(value.model_dump_json())


def stored_text(text: str) -> ColumnElement[Any]:
    """Return a JSON text as a jsonb expression."""
    # Search for the substring first, because the pattern looks behind every character and the text may be megabytes.
    kept = _NUL.sub(rf"\1{_REPLACEMENT}", text) if "\\u0000" in text else text
    return cast(literal(kept, Text), JSONB)


def text_of(column: KeyedColumnElement[Any] | ColumnElement[Any]) -> ColumnElement[str]:
    """Return a jsonb column as JSON text, because pydantic reads text faster than the driver's Python objects."""
    return cast(column, Text)


def printable(text: str) -> str:
    """Return `text` with each NUL replaced, because a text column cannot store one."""
    return text.replace("\x00", _REPLACEMENT)


def cut(column: KeyedColumnElement[Any]) -> ColumnElement[Any]:
    """Return a text column as `service.domain.cutting.cut` does. The server sends, and reads, no more of the text."""
    kept = func.left(column, KEPT_CHARACTERS)
    longer = func.octet_length(column) > func.octet_length(kept)
    found = case((func.octet_length(column) <= KEPT_CHARACTERS, column), (longer, kept.concat(MARK)), else_=column)
    return found.label(column.name)


def document(value: Mapping[str, Any]) -> ColumnElement[Any]:
    """Return a JSON object as a jsonb expression."""
    return stored_text(json.dumps(dict(value), ensure_ascii=True, allow_nan=False))


def recordset(rows: Iterable[Mapping[str, Any]], *columns: Column[Any]) -> TableValuedAlias:
    """Return JSON objects as a table called `new` with these columns. Many rows are one parameter of one statement.

    The planner estimates the table at a hundred rows. An update that joins it must also restrict its own rows with
    `among`. Otherwise the planner reads a small table in full.
    """
    text = json.dumps([dict(row) for row in rows], ensure_ascii=True, allow_nan=False)
    return func.jsonb_to_recordset(stored_text(text)).table_valued(*columns).render_derived("new", with_types=True)


def among(column: ColumnElement[int], ids: Iterable[int]) -> ColumnElement[bool]:
    """Return whether the column is one of `ids`. They are a single parameter, and the planner knows their number."""
    return column == any_(literal(list_of(ids), Ids()))


def called(column: ColumnElement[str], names: Iterable[str]) -> ColumnElement[bool]:
    """Return whether the column is one of `names`, which are a single parameter."""
    return column == any_(cast(literal(sorted(names), ARRAY(Text)), ARRAY(Text)))


class Ids(UserDefinedType[str]):
    """The type of a text parameter that the server parses as an array of ids once, when it is bound.

    A cast from text in the statement would be parsed again for every row that it is compared with.
    """

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_: object) -> str:
        return "BIGINT[]"


def list_of(ids: Iterable[int]) -> str:
    """Return ids as the text of an array. The driver sends text unchanged, but would convert each number of a list."""
    return f"{{{','.join(map(str, sorted(ids)))}}}"
