"""Statements that act on jobs and on the barriers of all: ALTER, CANCEL JOBS, SHOW JOBS, WAIT, FLUSH and RECOVER."""

from dataclasses import dataclass
from typing import Final

from service.domain.adaptive import AUTO, Asked
from service.domain.errors import Invalid
from service.domain.parallelism import Parallelism, parse_parallelism
from service.protocol.ids import FragmentId, JobId
from service.protocol.mutation import RATE_LIMIT_MAX
from service.protocol.relation import RelationKind
from service.sql.statements.relations import job_kind
from service.sql.statements.statement import Parsers, Statement
from service.sql.statements.tables import AddColumn, parse_add_column
from service.sql.text.cursor import Cursor
from service.sql.text.tokens import TokenKind, syntax_error

_ID_MAX: Final = (1 << 63) - 1
CANCELLED_MAX: Final = 100
"""Jobs that one statement may cancel. They are changed together, and others wait for them meanwhile."""


@dataclass(frozen=True, slots=True)
class AlterRateLimit(Statement):
    """ALTER .. SET BACKFILL_RATE_LIMIT. A limit of None is unlimited, 0 is paused, and `auto` is
    adapted to the load.
    """

    kind: RelationKind
    name: str
    limit: Asked


@dataclass(frozen=True, slots=True)
class AlterParallelism(Statement):
    """ALTER .. SET PARALLELISM, or SET BACKFILL_PARALLELISM if `backfill`. None is DEFAULT.

    With `deferred` the statement does not wait until the new actors run.
    """

    kind: RelationKind
    name: str
    parallelism: Parallelism | None
    backfill: bool = False
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class ReloadTable(Statement):
    """ALTER TABLE .. RELOAD."""

    name: str


@dataclass(frozen=True, slots=True)
class AlterFragmentRateLimit(Statement):
    """ALTER FRAGMENT .. SET RATE_LIMIT. The limit is as in `AlterRateLimit`."""

    fragment: FragmentId
    limit: Asked


@dataclass(frozen=True, slots=True)
class ShowJobs(Statement):
    """SHOW JOBS."""


@dataclass(frozen=True, slots=True)
class CancelJobs(Statement):
    """CANCEL JOBS. The ids are in the given order, without duplicates."""

    ids: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class Flush(Statement):
    """FLUSH."""


@dataclass(frozen=True, slots=True)
class Wait(Statement):
    """WAIT for one relation, or for all (both None)."""

    kind: RelationKind | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Recover(Statement):
    """RECOVER."""


_INSTEAD: Final = {
    "rename": "a view has the other name: CREATE VIEW new_name AS SELECT .. FROM {name}",
    "drop": "a view leaves the column out: CREATE VIEW shown AS SELECT .. FROM {name}",
    "alter": "create a table of the other shape, and INSERT INTO it SELECT .. FROM {name}",
    "owner": "what a caller may do is its token's role",
}
"""The way out for each ALTER of a table or a materialized view that is not supported, by its word."""


def _alter(cursor: Cursor) -> AlterRateLimit | AlterParallelism | ReloadTable | AddColumn:
    # A logical view cannot be altered at all, but its name leads to the same ways out.
    logical = cursor.accept("view")
    kind = RelationKind.VIEW if logical else job_kind(cursor, "ALTER")
    name = cursor.relation()
    _refuse(cursor, kind, name)
    if kind is RelationKind.TABLE and cursor.accept("add"):
        return parse_add_column(cursor, name)
    if kind is RelationKind.TABLE and cursor.accept("reload"):
        cursor.expect_end()
        return ReloadTable(name)
    for word in ("parallelism", "backfill_parallelism"):
        if cursor.accept("set", word):
            parallelism = _parallelism(cursor)
            deferred = cursor.accept("deferred")
            cursor.expect_end()
            return AlterParallelism(kind, name, parallelism, word == "backfill_parallelism", deferred)
    return AlterRateLimit(kind, name, _limit(cursor, "backfill_rate_limit"))


def _refuse(cursor: Cursor, kind: RelationKind, name: str) -> None:
    """Raise Invalid, with the way out, for a change that no relation of this kind can have."""
    word = cursor.token
    what = f"ALTER {kind.upper()} .. {word.text.upper()}"
    if word.kind is TokenKind.NAME and word.value in _INSTEAD and kind is not RelationKind.SINK:
        instead = _INSTEAD[word.value].format(name=name)
    elif word.is_word("add") and kind is not RelationKind.TABLE:
        instead = "its columns are those of its query: create another view"
    elif kind is RelationKind.VIEW:
        instead = "DROP it and CREATE it again"
    else:
        return
    raise Invalid(f"{what} is not supported: {instead}", position=word.position)


def _alter_fragment(cursor: Cursor) -> AlterFragmentRateLimit:
    fragment = FragmentId(cursor.integer(maximum=_ID_MAX))
    if cursor.token.is_symbol(","):
        raise Invalid("ALTER FRAGMENT takes one fragment", position=cursor.token.position)
    return AlterFragmentRateLimit(fragment, _limit(cursor, "rate_limit", "backfill_rate_limit"))


def _cancel(cursor: Cursor) -> CancelJobs:
    if not cursor.accept("jobs"):
        cursor.expect("job")
    ids = [JobId(cursor.integer(maximum=_ID_MAX))]
    while cursor.accept_symbol(","):
        if len(ids) == CANCELLED_MAX:
            raise Invalid(f"CANCEL JOBS takes at most {CANCELLED_MAX} ids", position=cursor.token.position)
        ids.append(JobId(cursor.integer(maximum=_ID_MAX)))
    cursor.expect_end()
    return CancelJobs(tuple(dict.fromkeys(ids)))


def _wait(cursor: Cursor) -> Wait:
    if cursor.token.kind is TokenKind.END:
        return Wait()
    kind = job_kind(cursor, "WAIT")
    name = cursor.relation()
    cursor.expect_end()
    return Wait(kind, name)


def _parallelism(cursor: Cursor) -> Parallelism | None:
    """Read a number, `adaptive`, `bounded(n)`, `ratio(r)` or DEFAULT. The value may be a string."""
    if not cursor.accept("to"):
        cursor.expect_symbol("=")
    token = cursor.token
    if token.kind not in {TokenKind.NAME, TokenKind.NUMBER, TokenKind.STRING}:
        raise syntax_error(token)
    text = cursor.advance().value
    if token.kind is TokenKind.NAME and cursor.accept_symbol("("):
        text += f"({cursor.advance().text}"
        cursor.expect_symbol(")")
        text += ")"
    if text.lower() == "default":
        return None
    try:
        return parse_parallelism(text)
    except Invalid as error:
        raise Invalid(str(error), position=token.position) from None


def _limit(cursor: Cursor, *names: str) -> Asked:
    cursor.expect("set")
    token = cursor.token
    if not any(cursor.accept(name) for name in names):
        if token.kind is not TokenKind.NAME:
            raise syntax_error(token)
        raise Invalid(f"ALTER ... SET {token.text.upper()} is not supported", position=token.position)
    if not cursor.accept("to"):
        cursor.expect_symbol("=")
    limit = _asked(cursor)
    cursor.expect_end()
    return limit


def _asked(cursor: Cursor) -> Asked:
    if cursor.accept("default"):
        return None
    token = cursor.token
    if cursor.accept(AUTO) or (token.kind is TokenKind.STRING and token.value.strip().lower() == AUTO):
        if token is cursor.token:
            cursor.advance()
        return AUTO
    limit = cursor.integer(maximum=RATE_LIMIT_MAX)
    return None if limit < 0 else limit


PARSERS: Final[Parsers] = {
    ("alter",): _alter,
    ("alter", "fragment"): _alter_fragment,
    ("cancel",): _cancel,
    ("show", "jobs"): ShowJobs(),
    ("wait",): _wait,
    ("flush",): Flush(),
    ("recover",): Recover(),
}
