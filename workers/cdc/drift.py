"""Decide whether the columns of an external table are still those that are followed. Pure.

The log names columns and types only. So it does not show that a column was replaced by another one of the same name,
or that its values were rewritten. The external catalog does (`service.protocol.cdc.ExternalColumn`):

- A replaced or renamed column has another number.
- ALTER TABLE .. TYPE .. USING rewrites the rows and alters the column, in one transaction. Both are seen at one look. A
  rewrite alone (VACUUM FULL, CLUSTER, TRUNCATE) changes no value, and an alteration alone (a setting) does not either.
- Both together may still change no value. All rows are then at least as new as the alteration if it rewrote them. One
  older row refutes that. So such a column is *doubted*: `workers.cdc.publication` looks for an older row.
- The text of a value of an enum or a composite depends on its type.
- A type that only got wider keeps all values and their texts. Postgres does not rewrite the rows for it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.cdc import CdcColumn, ExternalColumn, Shape

_MODIFIED: Final = re.compile(
    r"(?P<name>character varying|bit varying|numeric|timestamp|time)(\((?P<length>\d+)(,(?P<scale>-?\d+))?\))?"
    r"(?P<zone> with(out)? time zone)?"
)
"""Types whose values do not depend on the length or precision, as `format_type` prints them."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Why the table cannot be followed any more, or else which columns may have been rewritten."""

    reason: str | None = None
    doubted: tuple[ExternalColumn, ...] = ()


def drift(followed: Sequence[CdcColumn], before: Shape, now: Shape, *, ordered: Sequence[str] = ()) -> Drift:
    """Compare two looks at a table. `ordered` are the columns by whose collation history is still being read."""
    doubted: list[ExternalColumn] = []
    for column in followed:
        was = before.named(column.external) or ExternalColumn(
            number=0, name=column.external, type="", version="", collation="", sent=True
        )
        found = now.numbered(was.number)
        if found is None or found.name != was.name:
            return Drift(_gone(was, found, now))
        if not keeps_values(column.type, found.type):
            return Drift(f'its column "{was.name}" is now of type {found.type}, not {column.type}')
        if (reason := _reads_otherwise(was, found)) is not None:
            return Drift(reason)
        if was.name in ordered and found.collation != was.collation:
            return Drift(f'the collation of its key column "{was.name}" was changed while its history was read')
        if before.storage != now.storage and was.version != found.version:
            doubted.append(found)
    return Drift(doubted=tuple(doubted))


def keeps_values(before: str, now: str) -> bool:
    """Return whether a type is the same as before, or wider: every value of it still has its text."""
    if before == now:
        return True
    was, found = (_MODIFIED.fullmatch("character varying" if kind == "text" else kind) for kind in (before, now))
    if was is None or found is None or (was["name"], was["zone"]) != (found["name"], found["zone"]):
        return False
    if found["length"] is None:
        return True
    wide_enough = was["length"] is not None and int(found["length"]) >= int(was["length"])
    return wide_enough and found["scale"] == was["scale"]


def rewritten(column: ExternalColumn) -> str:
    """Return the reason for a doubted column that was rewritten."""
    return f'the values of its column "{column.name}" were rewritten by an ALTER TABLE'


def named_otherwise(sent: Sequence[str], before: Shape, now: Shape) -> bool:
    """Return whether the log describes a table that had other names, so that a value may be another column's.

    `sent` are the names in the log, in the order of the columns' numbers. `before` is the shape at an earlier place in
    the log, and `now` is the present one. A column in both of them existed all the time between them. A new column is
    the last one.
    """
    both = [column.name for column in now.columns if _lasted(before.numbered(column.number), column)]
    if [name for name in sent if name in set(both)] != both:
        return True
    known = {column.name for shape in (before, now) for column in shape.columns}
    last = list(sent).index(both[-1]) if both else 0
    return any(name not in known for name in sent[:last])


def _gone(was: ExternalColumn, found: ExternalColumn | None, now: Shape) -> str:
    what = "was dropped" if found is None else f'was renamed to "{found.name}"'
    none = ", and a column of this name has to be there first"
    other = none if now.named(was.name) is None else ", and another column has its name now"
    return f'its column "{was.name}" {what}{other}'


def _reads_otherwise(was: ExternalColumn, now: ExternalColumn) -> str | None:
    """Return why the text of a stored value may be another one now, None where it is the same."""
    labels = now.labels or {}
    for oid, label in (was.labels or {}).items():
        if (new := labels.get(oid)) != label:
            is_now = "dropped" if new is None else f'called "{new}"'
            return f'the value "{label}" of the type of its column "{was.name}" is now {is_now}'
    if was.parts != now.parts:
        return f'the type of its column "{was.name}" was altered, so that its values have another text'
    return None


def _lasted(was: ExternalColumn | None, now: ExternalColumn) -> bool:
    return was is not None and was.name == now.name and was.sent and now.sent
