"""Statements over a table of two numbers, run as the worker's DML login runs them: in order, each by itself."""

from collections.abc import Callable, Mapping, Sequence

from service.protocol.dml import Delete, InsertStaged, InsertValues, Statement, StatementResult, Update
from service.protocol.ids import StatementId
from tests.support.model import Key, Row

Staged = Mapping[StatementId, Sequence[tuple[int, int]]]
"""Rows that wait to be inserted, by statement."""

DIVISION = "1 / 0"
"""A predicate that fails."""


def written(rows: Sequence[tuple[int, int]]) -> str:
    """Return rows as the source of an INSERT."""
    return ";".join(f"{key} {value}" for key, value in rows)


def apply(statement: Statement, rows: dict[Key, Row], staged: Staged) -> tuple[StatementResult, set[Key]]:
    """Run one statement on the alive rows; return its result and the keys that it touched."""
    match statement:
        case InsertValues(source=source):
            brought = [(int(key), int(value)) for key, value in (one.split() for one in source.split(";"))]
        case InsertStaged(first=first, last=last):
            brought = list(staged[statement.id][first:last])
        case Delete(predicate=predicate) | Update(predicate=predicate):
            if predicate == DIVISION:
                return StatementResult(id=statement.id, affected=0, error="division by zero", sqlstate="22012"), set()
            return _changed(statement, rows, _matching(predicate))
    for key, value in brought:
        rows[key,] = (value,)
    return StatementResult(id=statement.id, affected=len(brought)), {(key,) for key, _ in brought}


def undefined(statement: Statement) -> StatementResult:
    """Return what becomes of a statement whose table is gone."""
    return StatementResult(id=statement.id, affected=0, error="relation does not exist", sqlstate="42P01")


def _matching(predicate: str | None) -> Callable[[Key, Row], bool]:
    if predicate is None:
        return lambda _key, _row: True
    column, _, number = predicate.partition(" = ")
    wanted = int(number)
    if column == "k":
        return lambda key, _row: key == (wanted,)
    return lambda _key, row: row[0] % 4 == wanted


def _changed(
    statement: Delete | Update, rows: dict[Key, Row], matches: Callable[[Key, Row], bool]
) -> tuple[StatementResult, set[Key]]:
    found = {key: row for key, row in rows.items() if matches(key, row)}
    made: list[tuple[Key, Row]] = []
    if isinstance(statement, Update):
        ((column, value),) = statement.assignments
        made = [((int(value),), row) if column == "k" else (key, (int(value),)) for key, row in found.items()]
        if len({key for key, _ in made}) < len(made):
            error = "the statement would give two rows the same key"
            return StatementResult(id=statement.id, affected=0, error=error, sqlstate="21000"), set()
    for key in found:
        del rows[key]
    rows.update(made)
    return StatementResult(id=statement.id, affected=len(found)), {*found, *(key for key, _ in made)}
