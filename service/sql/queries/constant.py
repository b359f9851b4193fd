"""Views that read no relation: their query is a constant, so Postgres computes it once."""

import re
from typing import Final

from service.protocol.columns import ColumnType, TypeName
from service.sql.expressions.allowed import check_allowed
from service.sql.queries.allowed import check_steady
from service.sql.statements.select import named_relations
from service.sql.text.tree import Tree

_DATES: Final = (TypeName.DATE, TypeName.TIMESTAMP, TypeName.TIMESTAMPTZ)
_YEAR: Final = re.compile(r'"?\d{4}-[^B]*|NULL')
"""A date in the years 1 to 9999, in Postgres's ISO text."""


def is_constant(tree: Tree) -> bool:
    """Whether a query reads no relation. Raises Invalid if such a query has not the same rows at each call."""
    if any(named_relations(tree.root)):
        return False
    for node in tree.root.walk():
        check_steady(tree, node)
        check_allowed(tree, node)
    return True


def is_kept(kind: ColumnType, text: str) -> bool:
    """Whether a table of this type would keep a value: tables have checks of their values, and views have none."""
    if kind.array and text.startswith(("[", "{{")):
        return False
    values = text[1:-1].split(",") if kind.array and text != "{}" else [text]
    if kind.name is TypeName.NUMERIC:
        return not {"NaN", "Infinity", "-Infinity"} & {*values}
    return kind.name not in _DATES or text == "{}" or all(map(_YEAR.fullmatch, values))
