"""Parse the commands that are not queries or DML: DROP, ALTER, SET, SHOW, CANCEL JOBS, WAIT, DESCRIBE."""

from typing import Final

from service.domain.adaptive import AUTO, Asked
from service.domain.errors import Invalid
from service.domain.parallelism import Parallelism, parse_parallelism
from service.protocol.ids import FragmentId, JobId
from service.protocol.mutation import RATE_LIMIT_MAX
from service.protocol.relation import RelationKind
from service.sql.statements.ast import (
    AlterFragmentRateLimit,
    AlterParallelism,
    AlterRateLimit,
    AlterSecret,
    AlterSystem,
    CancelJobs,
    Describe,
    Drop,
    DropSecret,
    SetVariable,
    ShowCreate,
    ShowInternalTables,
    ShowJobs,
    ShowParameters,
    ShowRelations,
    ShowSecrets,
    ShowVariable,
    Wait,
)
from service.sql.statements.secrets import parse_alter_secret, parse_drop_secret
from service.sql.text.cursor import Cursor
from service.sql.text.tokens import TokenKind, syntax_error

_ID_MAX: Final = (1 << 63) - 1

Shown = (
    ShowVariable | ShowJobs | ShowParameters | ShowRelations | ShowInternalTables | ShowSecrets | ShowCreate | Describe
)

_SHOWN: Final[dict[tuple[str, ...], Shown]] = {
    ("all",): ShowVariable(None),
    ("jobs",): ShowJobs(),
    ("parameters",): ShowParameters(),
    ("tables",): ShowRelations(RelationKind.TABLE),
    ("materialized", "views"): ShowRelations(RelationKind.MATERIALIZED_VIEW),
    ("views",): ShowRelations(RelationKind.VIEW),
    ("sources",): ShowRelations(RelationKind.SOURCE),
    ("internal", "tables"): ShowInternalTables(),
    ("secrets",): ShowSecrets(),
    ("time", "zone"): ShowVariable("timezone"),
}


def parse_drop(cursor: Cursor) -> Drop | DropSecret:
    """Parse the rest of DROP."""
    if cursor.accept("secret"):
        return parse_drop_secret(cursor)
    kind = _any_kind(cursor, "DROP")
    if_exists = cursor.accept("if", "exists")
    name = cursor.relation()
    if cursor.token.is_symbol(","):
        raise Invalid("DROP takes one relation", position=cursor.token.position)
    cascade = cursor.accept("cascade")
    if not cascade:
        cursor.accept("restrict")
    cursor.expect_end()
    return Drop(kind, name, if_exists, cascade)


def parse_alter(
    cursor: Cursor,
) -> AlterSystem | AlterSecret | AlterRateLimit | AlterParallelism | AlterFragmentRateLimit:
    """Parse the rest of ALTER."""
    if cursor.accept("secret"):
        return parse_alter_secret(cursor)
    if cursor.accept("system"):
        cursor.expect("set")
        name = _variable(cursor)
        return AlterSystem(name, _assigned(cursor))
    if cursor.accept("fragment"):
        fragment = FragmentId(cursor.integer(maximum=_ID_MAX))
        if cursor.token.is_symbol(","):
            raise Invalid("ALTER FRAGMENT takes one fragment", position=cursor.token.position)
        return AlterFragmentRateLimit(fragment, _limit(cursor, "rate_limit", "backfill_rate_limit"))
    kind = _kind(cursor, "ALTER")
    name = cursor.relation()
    for word in ("parallelism", "backfill_parallelism"):
        if cursor.accept("set", word):
            parallelism = _parallelism(cursor)
            deferred = cursor.accept("deferred")
            cursor.expect_end()
            return AlterParallelism(kind, name, parallelism, word == "backfill_parallelism", deferred)
    return AlterRateLimit(kind, name, _limit(cursor, "backfill_rate_limit"))


def parse_set(cursor: Cursor) -> SetVariable:
    """Parse the rest of SET."""
    if cursor.token.is_word("local", "transaction", "constraints", "role"):
        raise Invalid(f"SET {cursor.token.text.upper()} is not supported", position=cursor.token.position)
    cursor.accept("session")
    if cursor.accept("time", "zone"):
        return SetVariable("timezone", _value(cursor))
    name = _variable(cursor)
    return SetVariable(name, _assigned(cursor))


def parse_show(
    cursor: Cursor,
) -> (
    ShowVariable | ShowJobs | ShowParameters | ShowRelations | ShowInternalTables | ShowSecrets | ShowCreate | Describe
):
    """Parse the rest of SHOW."""
    if cursor.accept("create"):
        kind = _any_kind(cursor, "SHOW CREATE")
        shown = ShowCreate(kind, cursor.relation())
    elif cursor.accept("columns", "from"):
        shown = Describe(cursor.relation())
    else:
        shown = _show_word(cursor)
    cursor.expect_end()
    return shown


def parse_cancel(cursor: Cursor) -> CancelJobs:
    """Parse the rest of CANCEL."""
    if not cursor.accept("jobs"):
        cursor.expect("job")
    ids = [JobId(cursor.integer(maximum=_ID_MAX))]
    while cursor.accept_symbol(","):
        ids.append(JobId(cursor.integer(maximum=_ID_MAX)))
    cursor.expect_end()
    return CancelJobs(tuple(dict.fromkeys(ids)))


def parse_wait(cursor: Cursor) -> Wait:
    """Parse the rest of WAIT."""
    if cursor.token.kind is TokenKind.END:
        return Wait()
    kind = _kind(cursor, "WAIT")
    name = cursor.relation()
    cursor.expect_end()
    return Wait(kind, name)


def parse_describe(cursor: Cursor) -> Describe:
    """Parse the rest of DESCRIBE."""
    name = cursor.relation()
    cursor.expect_end()
    return Describe(name)


def _any_kind(cursor: Cursor, command: str) -> RelationKind:
    if cursor.accept("source"):
        return RelationKind.SOURCE
    return RelationKind.VIEW if cursor.accept("view") else _kind(cursor, command)


def _kind(cursor: Cursor, command: str) -> RelationKind:
    token = cursor.token
    if cursor.accept("table"):
        return RelationKind.TABLE
    if cursor.accept("materialized", "view"):
        return RelationKind.MATERIALIZED_VIEW
    if token.is_word("materialized"):
        cursor.expect("materialized", "view")
    if token.kind is not TokenKind.NAME:
        raise syntax_error(token)
    raise Invalid(f"{command} {token.text.upper()} is not supported", position=token.position)


def _show_word(cursor: Cursor) -> Shown:
    for words, shown in _SHOWN.items():
        if cursor.accept(*words):
            return shown
    return ShowVariable(_variable(cursor))


def _variable(cursor: Cursor) -> str:
    # Postgres ignores the case of parameter names, even of quoted ones.
    return cursor.name().lower()


def _assigned(cursor: Cursor) -> str:
    if not cursor.accept("to"):
        cursor.expect_symbol("=")
    return _value(cursor)


def _value(cursor: Cursor) -> str:
    token = cursor.token
    sign = "-" if cursor.accept_symbol("-") else ""
    token = cursor.advance()
    kinds = (TokenKind.NUMBER,) if sign else (TokenKind.NAME, TokenKind.QUOTED, TokenKind.STRING, TokenKind.NUMBER)
    if token.kind not in kinds:
        raise syntax_error(token)
    cursor.expect_end()
    return sign + token.value


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
