"""Check queries that Postgres runs as written, and find the relations that they name.

The fence is the reader's login: it is read-only and sees public views and `rw_catalog` only. This module refuses what a
login cannot be denied: functions that wait, lock, notify, read files or run a text as a query, views of other callers'
sessions, and statements that only look like queries. It checks the tokens, so it works whether or not sqlglot
understands the text.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.relation import CATALOG_PREFIX
from service.sql.statements.statement import Parsers, Statement
from service.sql.text.cursor import SCHEMA, Cursor
from service.sql.text.tokens import QUERY_WORDS, Token, TokenKind
from service.sql.text.tree import Tree, identifier, parse_tree

CATALOG: Final = "rw_catalog"
CATALOGS: Final = frozenset({CATALOG, "pg_catalog", "information_schema"})

_DENIED: Final = re.compile(
    r"""pg_(try_)?advisory.*|pg_notify|set_config|pg_sleep.*|lo_.*|loread|lowrite|dblink.*|pg_read_.*|pg_ls_.*|pg_stat_file
    |pg_file_.*|(query|table|cursor|database|schema)_to_xml.*|pg_cancel_backend|pg_terminate_backend|pg_reload_conf
    |pg_rotate_logfile.*|txid_current|pg_current_xact_id|nextval|setval|currval|lastval|pg_logical_.*|pg_replication_.*
    |pg_create_.*|pg_drop_.*|pg_switch_wal|pg_backup_.*|pg_promote|pg_wal_replay_.*|pg_export_snapshot|pg_import_.*|pg_set_.*
    |pg_stat_reset.*|pg_restore_.*|pg_clear_.*|pg_log_.*|pg_copy_.*|pg_sync_.*|pg_prewarm.*|pg_execute_.*|pg_nextoid
    |pg_stop_making_pinned_objects|binary_upgrade_.*|brin_.*|gin_clean_pending_list|ts_stat|ts_rewrite|crosstab.*|connectby
    |pg_identify_object_as_address|pg_hba_file_rules|pg_show_all_file_settings|pg_config|current_setting
    |pg_stat_get_(activity|(backend|progress|replication|subscription|wal)_?.*)|pg_(cursor|prepared_statement|prepared_xact)
    |pg_lock_status|pg_(safe_snapshot_)?blocking_pids|pg_get_publication_tables|pg_current_logfile|pg_backend_memory_contexts|pg_get_shmem_.*""",
    re.VERBOSE,
)

_FIELDS: Final = re.compile(
    r"pg_.*|ts_stat|dblink.*|crosstab.*|brin_.*|binary_upgrade_.*|lo_(creat|create|unlink|close|import|get|tell|tell64)"
)
"""Which of them are refused as `(x).f` and `t.f`, which calls them. Columns have the names of others, as `lo_revenue`,
and these show no other session.
"""

_DENIED_VIEWS: Final = re.compile(
    r"""pg_stat_(activity|gssapi|progress_.*|replication.*|ssl|statements.*|subscription.*|wal_receiver)|pg_aios|pg_cursors
    |pg_locks|pg_prepared_(statements|xacts)|pg_replication_slots""",
    re.VERBOSE,
)
"""System views of other sessions. All callers' queries run under one login, which sees the text of each of them."""


@dataclass(frozen=True, slots=True)
class Select(Statement):
    """A query as written. Postgres itself parses it, under the reader's login.

    `relations` are the relations of `public` that it names; empty if only Postgres can parse the text. `catalog` is
    True if it names `rw_catalog`.
    """

    sql: str
    relations: tuple[str, ...] = ()
    catalog: bool = False


def parse_select(cursor: Cursor) -> Select:
    """Parse a whole query. Raises Invalid for a forbidden construct. Postgres checks the syntax."""
    tokens = cursor.rest
    check_query(tokens)
    tree = query_tree(cursor.text, tokens)
    names = {token.value for token in tokens if token.kind in (TokenKind.NAME, TokenKind.QUOTED)}
    catalog = CATALOG in names or (tree is None and any(name.startswith(CATALOG_PREFIX) for name in names))
    return Select(cursor.text[tokens[0].start : tokens[-1].start], _relations(tree), catalog)


def query_tree(text: str, tokens: Sequence[Token]) -> Tree | None:
    """Return the query as sqlglot parses it, or None if only Postgres can parse it."""
    try:
        return parse_tree(text, tokens)
    except Invalid:
        return None


def check_query(tokens: Sequence[Token]) -> None:
    """Raise Invalid for a query that does more than read."""
    for before, token, after in zip([None, *tokens], tokens, tokens[1:], strict=False):
        if token.kind is TokenKind.PARAMETER:
            raise Invalid(f"there is no parameter {token.text}", position=token.position)
        _check_name(before, token, after)
        if reason := _writes(before, token, after):
            raise Invalid(f"{reason} is not allowed here", position=token.position)


def _check_name(before: Token | None, token: Token, after: Token) -> None:
    """Raise Invalid if a token is the name of a denied function that is called, or of a denied view."""
    if token.kind not in (TokenKind.NAME, TokenKind.QUOTED):
        return
    field = before is not None and before.is_symbol(".") and _FIELDS.fullmatch(token.value)
    called = after.is_symbol("(") or field
    if called and _DENIED.fullmatch(token.value):
        raise Invalid(f"function {token.value} is not allowed here", position=token.position)
    if _DENIED_VIEWS.fullmatch(token.value):
        raise Invalid(f"view {token.value} is not allowed here: it shows other sessions", position=token.position)


def named_relations(root: exp.Expr) -> Iterable[exp.Table]:
    """Yield the tables that a tree reads, except names of common table expressions."""
    for table in root.find_all(exp.Table):
        if isinstance(table.this, exp.Identifier) and not is_cte(table):
            yield table


def is_cte(table: exp.Table) -> bool:
    """Whether the name stands for a common table expression of an enclosing query."""
    if table.args.get("db") is not None or not isinstance(table.this, exp.Identifier):
        return False
    name, at = identifier(table.this), table.parent
    while at is not None:
        clause = at.args.get("with_")
        if clause is not None and any(_cte_name(cte) == name for cte in clause.expressions):
            return True
        at = at.parent
    return False


def _cte_name(cte: exp.Expr) -> str | None:
    alias = cte.args.get("alias")
    return identifier(alias.this) if isinstance(alias, exp.TableAlias) and alias.this else None


def _relations(tree: Tree | None) -> tuple[str, ...]:
    if tree is None:
        return ()
    names: dict[str, None] = {}
    for table in named_relations(tree.root):
        schema = table.args.get("db")
        if schema is None or identifier(schema) == SCHEMA:
            names[identifier(table.this)] = None
        elif identifier(schema) not in CATALOGS:
            message = f'schema "{identifier(schema)}" does not exist'
            raise Invalid(message, position=tree.position(schema))
    return tuple(names)


def _writes(before: Token | None, token: Token, after: Token) -> str | None:
    """Return the writing construct that begins at a token, or None.

    The words are either reserved or recognised by the tokens next to them.
    """
    as_name = before is not None and (before.is_symbol(".") or before.is_word("as"))
    if token.kind is not TokenKind.NAME or as_name:
        return None
    opened = before is None or before.is_symbol("(", ")")
    if token.value == "into":
        return "SELECT INTO" if before is None or not before.is_word("insert", "merge") else "INSERT"
    if token.value == "for" and after.is_word("update", "share", "no", "key"):
        return f"FOR {after.text.upper()}"
    if opened and token.value == "delete" and after.is_word("from"):
        return "DELETE"
    if opened and token.value == "update" and after.kind in (TokenKind.NAME, TokenKind.QUOTED):
        return "UPDATE"
    return None


PARSERS: Final[Parsers] = {(word,): parse_select for word in QUERY_WORDS}
