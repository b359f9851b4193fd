"""A statement and its result. The statement runs as `POST /v1/sql` runs it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import Any, Final, cast

from service.domain.errors import Invalid, MetaError, NotFound
from service.operations.leaving import Gone
from service.operations.statements import dispatch
from service.operations.statements.outcome import Outcome
from service.pages.asking import Ask
from service.pages.data.plan import Plan, plan

ROWS_MAX: Final = 1_000
SESSION_FIRST: Final[Mapping[str, str]] = {"background_ddl": "true", "row_limit": str(ROWS_MAX)}
"""A CREATE answers at once and its job goes on, because a browser does not wait for it."""
SESSION_CHARACTERS_MAX: Final = 10_000
_VALUE_MAX: Final = 2_000
"""How many characters of a value are shown."""
_CELLS_MAX: Final = 50_000
_CHARACTERS_MAX: Final = 4_000_000
"""Of all values together. A browser is slow with more."""
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, default=str)
_SHORT: Final = (int, float, NoneType)
"""The types of values that are short."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error, with the line of the statement and a caret under the place if it is known."""

    text: str
    line: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class SqlPage:
    """The form with the statement and the session, and the result of the last statement."""

    sql: str
    session: Mapping[str, str]
    tag: str = ""
    columns: tuple[tuple[str, str], ...] = ()
    rows: Sequence[Sequence[str | None]] = ()
    notices: tuple[str, ...] = ()
    truncated: bool = False
    job: int | None = None
    plan: Plan | None = None
    fault: Fault | None = None
    moves: bool = field(default=False, init=False)

    @property
    def session_text(self) -> str:
        """The session for the next statement, as JSON."""
        return json.dumps(dict(self.session))


async def read(ask: Ask) -> SqlPage:
    """Return the empty form, or one with the statement of the address, which is not run."""
    return SqlPage(ask.text("sql"), SESSION_FIRST)


async def run(ask: Ask, form: Mapping[str, str], gone: Gone | None = None) -> Callable[[], SqlPage]:
    """Run the statement of a form, with EXPLAIN if the form says so. A query ends when its reader is `gone`.

    The function that it returns makes the page, which takes a second for large values.
    """
    typed, explains = form.get("sql", ""), bool(form.get("explain"))
    session = session_of(form.get("session", ""))
    sql = f"EXPLAIN {typed}" if explains and not typed.lstrip().lower().startswith("explain") else typed
    try:
        if not sql.strip():
            raise Invalid("there is no statement")
        outcome = await dispatch.run(ask.world, sql, session=session, asked_by=ask.caller, gone=gone)
    except MetaError as error:
        refused = SqlPage(typed, session, fault=fault_of(error, typed, len(sql) - len(typed)))
        return lambda: refused
    return partial(shown, typed, outcome)


def shown(sql: str, outcome: Outcome) -> SqlPage:
    """Return the page with an outcome: at most `ROWS_MAX` rows, and fewer where they are wide."""
    most = min(ROWS_MAX, _CELLS_MAX // max(len(outcome.columns), 1))
    long = min(_VALUE_MAX, _CHARACTERS_MAX // max(min(len(outcome.rows), most) * len(outcome.columns), 1))
    lines = [str(row[0]) for row in outcome.rows] if outcome.tag == "EXPLAIN" else []
    return SqlPage(
        sql,
        dict(outcome.session) or SESSION_FIRST,
        tag=outcome.tag,
        columns=outcome.columns,
        rows=[[cell(one, long) for one in row] for row in outcome.rows[:most]],
        notices=outcome.notices,
        truncated=outcome.truncated or len(outcome.rows) > most,
        job=outcome.job,
        plan=plan(lines),
    )


def session_of(text: str) -> dict[str, str]:
    """Return the session that a form carries. One that is no map of texts is the first one."""
    try:
        found: Any = json.loads(text) if text and len(text) <= SESSION_CHARACTERS_MAX else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return dict(SESSION_FIRST)
    pairs: Mapping[Any, Any] = found
    return {str(name): str(value) for name, value in pairs.items()}


def fault_of(error: MetaError, sql: str, offset: int) -> Fault:
    """Return an error as the page shows it. `offset` characters of the statement that ran are not in `sql`."""
    position = error.position if isinstance(error, Invalid | NotFound) else None
    if position is None:
        return Fault(error.message)
    at = min(max(position - 1 - offset, 0), len(sql))
    start = sql.rfind("\n", 0, at) + 1
    end = sql.find("\n", at)
    line = sql[start : end if end >= 0 else len(sql)]
    return Fault(error.message, line, "".join("\t" if char == "\t" else " " for char in line[: at - start]) + "^")


def cell(value: object, long: int) -> str | None:
    """Return a value of a result as its cell shows it, cut to `long` characters. None is NULL."""
    if value is None:
        return None
    text = value
    if not isinstance(text, str):
        parts, size = list[str](), 0
        for part in _texts(value, long):
            parts.append(part)
            size += len(part)
            if size > long:
                break
        text = "".join(parts)
    return text if len(text) <= long else f"{text[:long]}…"


def _texts(value: object, long: int) -> Iterator[str]:
    """Yield JSON in small texts, for a reader of about `long` characters: a whole list of 60 MB stalls everybody."""
    if isinstance(value, str):
        yield _ENCODER.encode(value[: long + 1])
    elif isinstance(value, list | tuple):
        first = cast("Sequence[object]", value)[: long + 1]
        if all(isinstance(one, _SHORT) for one in first):
            yield _ENCODER.encode(first)
            return
        yield "["
        for place, one in enumerate(first):
            yield ", " if place else ""
            yield from _texts(one, long)
        yield "]"
    elif isinstance(value, dict):
        yield from _ENCODER.iterencode(value)
    else:
        yield _ENCODER.encode(value)
