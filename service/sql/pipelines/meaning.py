"""Turn a query in Spark's SQL into one of tidefill with the same meaning, or refuse it.

What is permitted is listed: each kind of node either means the same in both languages, or is rewritten by sqlglot into
what does, or has a check. Everything else is refused with its place. No schema is known here, so what depends on the
types of columns is permitted only where a cast beside it tells them.
"""

from dataclasses import dataclass

from sqlglot import ErrorLevel, exp
from sqlglot.dialects.databricks import Databricks
from sqlglot.errors import ParseError, SqlglotError, UnsupportedError

from service.domain.errors import Invalid
from service.sql.pipelines.files import Prefixes, Query, own_name
from service.sql.pipelines.same import RESULTS, reason
from service.sql.statements.select import is_cte, named_relations
from service.sql.text.tree import identifier

_STATEFUL = (
    exp.Join,
    exp.Group,
    exp.Having,
    exp.Distinct,
    exp.Limit,
    exp.Offset,
    exp.Order,
    exp.Window,
    exp.AggFunc,
    exp.Subquery,
    exp.CTE,
    exp.Exists,
)
"""What a query that only appends does not have: with each of these, a new row may change or remove another one."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """A query of tidefill. `streams` are those of its `reads` that are read as streams.

    `appends` is whether each new row of its one relation becomes one new row at most.
    """

    sql: str
    reads: frozenset[str]
    streams: frozenset[str]
    appends: bool


def meaning_of(query: Query, prefixes: Prefixes) -> Meaning:
    """Return what a query means. Raises Invalid with the position in its file."""
    root = _parsed(query)
    streams = _without_streams(root, query, prefixes)
    for node in root.walk():
        if why := reason(node):
            raise Invalid(why, position=_position(node, query))
    _check_names(root, query)
    for table in list(root.find_all(exp.Table)):
        _rename(table, query, prefixes)
    reads = frozenset(identifier(table.this) for table in named_relations(root))
    return Meaning(_printed(root, query), reads, streams, _appends(root) and len(reads) == 1)


def _appends(root: exp.Query) -> bool:
    return [*root.find_all(exp.Select)] == [root] and not any(root.find_all(*_STATEFUL))


def _parsed(query: Query) -> exp.Query:
    try:
        found = Databricks().parse(query.text, error_level=ErrorLevel.IMMEDIATE)
    except ParseError as error:
        raise _syntax_error(error, query) from None
    except (SqlglotError, RecursionError) as error:
        raise Invalid(f"the query cannot be read: {error}", position=query.offset + 1) from None
    if len(found) != 1 or not isinstance(found[0], exp.Query):
        raise Invalid("a query begins with SELECT, WITH, FROM or VALUES", position=query.offset + 1)
    return found[0]


def _syntax_error(error: ParseError, query: Query) -> Invalid:
    first = error.errors[0] if error.errors else {}
    line, column = int(first.get("line") or 1), int(first.get("col") or 1)
    before = sum(len(one) for one in query.text.splitlines(keepends=True)[: line - 1])
    near = first.get("highlight") or "the end"
    return Invalid(f'syntax error at or near "{near}"', position=query.offset + before + column)


def _without_streams(root: exp.Query, query: Query, prefixes: Prefixes) -> frozenset[str]:
    """Replace each `STREAM x` by `x`, and return the names."""
    found: set[str] = set()
    for stream in list(root.find_all(exp.Stream)):
        inner = stream.this.this if isinstance(stream.this, exp.Subquery) else stream.this
        if not isinstance(inner, exp.Table):
            raise Invalid("STREAM takes the name of a relation", position=_position(stream, query))
        alias = stream.args.get("alias") or stream.this.args.get("alias")
        if alias is not None:
            inner.set("alias", alias)
        stream.replace(inner)
        found.add(own_name(_parts(inner), prefixes, _position(inner, query)))
    return frozenset(found)


def _parts(table: exp.Table) -> tuple[str, ...]:
    named = (table.args.get("catalog"), table.args.get("db"), table.this)
    return tuple(identifier(one) for one in named if one is not None)


def _rename(table: exp.Table, query: Query, prefixes: Prefixes) -> None:
    if is_cte(table):
        return
    name = own_name(_parts(table), prefixes, _position(table, query))
    was_qualified = table.args.get("db") is not None
    table.set("db", None)
    table.set("catalog", None)
    if was_qualified and is_cte(table):
        raise Invalid(f"{name} is also the name of a WITH query: rename that", position=_position(table, query))


def _check_names(root: exp.Query, query: Query) -> None:
    """Raise Invalid if a column that others see has no name: Spark and Postgres name it differently."""
    for select in root.find_all(exp.Select):
        if not _is_seen(select):
            continue
        for one in select.expressions:
            if not isinstance(one, exp.Alias | exp.Column | exp.Star):
                raise Invalid("a computed column needs a name: AS ..", position=_position(one, query))


def _is_seen(select: exp.Select) -> bool:
    above, below = select.parent, select
    while isinstance(above, exp.SetOperation | exp.Subquery):
        # The first query of a UNION names its columns.
        if isinstance(above, exp.SetOperation) and above.this is not below:
            return False
        above, below = above.parent, above
    return above is None or isinstance(above, exp.CTE | exp.From | exp.Join)


def _printed(root: exp.Query, query: Query) -> str:
    for node in list(root.find_all(*RESULTS)):
        kind = RESULTS[type(node)]
        if not (isinstance(node.parent, exp.Cast) and node.parent.to.this is kind):
            node.replace(exp.Cast(this=node.copy(), to=exp.DataType(this=kind)))
    try:
        return root.sql("postgres", unsupported_level=ErrorLevel.RAISE, comments=False)
    except UnsupportedError as error:
        raise Invalid(f"this has no translation: {error}", position=query.offset + 1) from None


def _position(node: exp.Expr, query: Query) -> int:
    at: exp.Expr | None = node
    while at is not None:
        starts = [part.meta["start"] for part in at.walk() if isinstance(part.meta.get("start"), int)]
        if starts:
            return query.offset + 1 + min(starts)
        at = at.parent
    return query.offset + 1
