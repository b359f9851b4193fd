"""CREATE MATERIALIZED VIEW: its options, and what its query becomes: a projection and a filter over one relation.

The view's key is its upstream's, in the same order: a key column that the query passes on unchanged is the view's key
column, any other is appended to the projection under a name of its own, hidden. So every row of the view belongs to
one row of the upstream, and a change of that row says which row of the view changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.protocol.columns import Column, ColumnType, KeyColumn, TypeName
from service.protocol.plan import Stateless
from service.protocol.relation import Relation, RelationKind
from service.sql.audit import audit
from service.sql.commands import RATE_LIMIT_MAX
from service.sql.cursor import KEY_PREFIX, NAME_BYTES_MAX, SCHEMA, Cursor, checked_column
from service.sql.expressions import Scope
from service.sql.operators import truth
from service.sql.options import Option, read_options
from service.sql.order import bind_order, parse_order
from service.sql.pushdown import push_down
from service.sql.statements import BackfillOrder, CreateMaterializedView
from service.sql.tables import UNBOUND
from service.sql.tokens import fold, syntax_error
from service.sql.tree import Tree, given, identifier, parse_tree
from service.sql.typed import Typed, quoted_name, settled

OPTIONS: Final = frozenset({"backfill_rate_limit", "backfill_order"})

# Spark keeps these as text, so only the binder knows what they are.
_WITHOUT_TWIN: Final = frozenset({TypeName.TIME, TypeName.UUID, TypeName.JSONB, TypeName.INTERVAL})

_CLAUSES: Final = {
    "joins": "a join",
    "group": "GROUP BY",
    "having": "HAVING",
    "distinct": "DISTINCT",
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "fetch": "FETCH",
    "with_": "WITH",
    "windows": "WINDOW",
    "qualify": "QUALIFY",
    "laterals": "LATERAL",
    "locks": "FOR UPDATE/SHARE",
    "into": "SELECT INTO",
    "hint": "a hint",
    "sample": "TABLESAMPLE",
    "pivots": "PIVOT",
}


@dataclass(frozen=True, slots=True)
class BoundView:
    """A view's query over its upstream. `names` are the projection's, the last `hidden` of them hidden key columns.

    `sources` has, per output, the upstream's column it passes on unchanged or None; `types` a type that Spark cannot
    tell.
    """

    upstream: Relation
    query: Stateless
    names: tuple[str, ...]
    hidden: int
    key: tuple[KeyColumn, ...]
    sources: tuple[Column | None, ...]
    types: tuple[ColumnType | None, ...]


def parse_create_view(cursor: Cursor) -> CreateMaterializedView:
    """Read what follows CREATE MATERIALIZED VIEW."""
    if_not_exists = cursor.accept("if", "not", "exists")
    name = cursor.relation()
    if cursor.token.is_symbol("("):
        raise Invalid("a column list is not supported: name the columns in the query", position=cursor.token.position)
    options = read_options(cursor, known=OPTIONS) if cursor.accept("with") else {}
    cursor.expect("as")
    if not (cursor.token.is_symbol("(") or cursor.token.is_word("select", "with", "values", "table")):
        raise syntax_error(cursor.token)
    order = parse_order(options["backfill_order"].tokens) if "backfill_order" in options else BackfillOrder()
    return CreateMaterializedView(
        name=name,
        if_not_exists=if_not_exists,
        options={option.name: option.text for option in options.values()},
        query=parse_tree(cursor.text, cursor.rest),
        text=cursor.text.strip(),
        limited="backfill_rate_limit" in options,
        backfill_rate_limit=_limit(options.get("backfill_rate_limit")),
        order=order,
    )


def bind_view(statement: CreateMaterializedView, relations: Mapping[str, Relation]) -> BoundView:
    """Return what the view's query means over the relations there are. Raises Invalid and NotFound."""
    try:
        return _bind(statement, relations)
    except RecursionError:
        raise Invalid("the query is nested too deeply", position=statement.query.start + 1) from None


def view_relation(bound: BoundView, columns: Sequence[Column], name: str) -> Relation:
    """Return the view's relation, given its columns as Spark types them (hidden ones included, in order)."""
    assert len(columns) == len(bound.names), (columns, bound.names)
    visible = len(bound.names) - bound.hidden
    key = {part.name for part in bound.key}
    made: list[Column] = []
    for place, (label, typed) in enumerate(zip(bound.names, columns, strict=True)):
        source, known = bound.sources[place], bound.types[place]
        kind = source.type if source is not None else known or typed.type
        nullable = source.nullable if source is not None else typed.nullable
        nullable = nullable and label not in key
        made.append(Column(name=label, type=kind, nullable=nullable, hidden=place >= visible))
    return Relation(
        id=UNBOUND,
        name=name,
        kind=RelationKind.MATERIALIZED_VIEW,
        columns=tuple(made),
        key=bound.key,
        vnode_count=bound.upstream.vnode_count,
    )


def _bind(statement: CreateMaterializedView, relations: Mapping[str, Relation]) -> BoundView:
    tree = statement.query
    select = tree.root
    if not isinstance(select, exp.Select):
        what: dict[type[exp.Expr], str] = {
            exp.Union: "UNION",
            exp.Except: "EXCEPT",
            exp.Intersect: "INTERSECT",
            exp.Subquery: "a subquery",
        }
        called = what.get(type(select), type(select).__name__.upper())
        raise Invalid(f"{called} is not supported in a view", position=tree.position(select))
    _check_clauses(tree, select)
    scope = _from(tree, select.args.get("from_"), relations)
    bind_order(statement.order, scope.relation.name, relations)
    outputs = _outputs(scope, select.expressions)
    if not outputs:
        raise Invalid("a view needs a column", position=tree.start + 1)
    where = select.args.get("where")
    predicate = truth(scope.bind(where.this), "WHERE") if where is not None else None
    return _keyed(scope, outputs, predicate, None if where is None else where.this)


def _check_clauses(tree: Tree, select: exp.Select) -> None:
    for clause in sorted(given(select) - {"expressions", "from_", "where"}):
        part = select.args[clause]
        part = part[0] if isinstance(part, list) else part
        place = tree.position(part) if isinstance(part, exp.Expr) else tree.start + 1
        raise Invalid(f"{_CLAUSES.get(clause, clause.upper())} is not supported in a view", position=place)


def _from(tree: Tree, clause: exp.Expr | None, relations: Mapping[str, Relation]) -> Scope:
    if clause is None:
        raise Invalid("a view reads a table or a view: FROM is missing", position=tree.start + 1)
    table = clause.this
    place = tree.position(table)
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        what = "a subquery" if isinstance(table, exp.Subquery) else "a function or a list of values"
        raise Invalid(f"{what} in FROM is not supported in a view", position=place)
    if extra := given(table) - {"this", "db", "alias"}:
        called = _CLAUSES.get(min(extra), min(extra).upper())
        raise Invalid(f"{called} is not supported in a view", position=place)
    name, schema = identifier(table.this), table.args.get("db")
    shown = name if schema is None else f"{identifier(schema)}.{name}"
    if (schema is not None and identifier(schema) != SCHEMA) or name not in relations:
        raise NotFound(f'relation "{shown}" does not exist', kind="relation", position=place)
    alias = table.args.get("alias")
    if alias is not None and given(alias) != frozenset({"this"}):
        raise Invalid("column aliases in FROM are not supported in a view", position=place)
    return Scope(tree, relations[name], frozenset({identifier(alias.this) if alias is not None else name}))


@dataclass(frozen=True, slots=True)
class _Output:
    name: str
    value: Typed


def _outputs(scope: Scope, nodes: Sequence[exp.Expr]) -> list[_Output]:
    outputs: list[_Output] = []
    seen: set[str] = set()
    for node in nodes:
        for output in _expanded(scope, node, len(outputs) + 1):
            if output.name in seen:
                raise Invalid(f'column "{output.name}" specified more than once', position=output.value.position)
            seen.add(output.name)
            outputs.append(output)
    return outputs


def _expanded(scope: Scope, node: exp.Expr, number: int) -> list[_Output]:
    place = scope.tree.position(node)
    star = node.this if isinstance(node, exp.Column) else node
    if isinstance(star, exp.Star):
        scope.reads(star)
        if isinstance(node, exp.Column):
            scope.reads(node, "this", "table")
            scope.qualifier(node.args.get("table"))
        columns = scope.relation.visible
        return [_Output(c.name, Typed(quoted_name(c.name, place), c.type, place, column=c)) for c in columns]
    if isinstance(node, exp.Alias):
        scope.reads(node, "this", "alias")
        label = checked_column(identifier(node.args["alias"]), scope.tree.position(node.args["alias"]))
        return [_Output(label, settled(scope.argument(node)))]
    value = settled(scope.bind(node))
    return [_Output(checked_column(_label(node) or f"column{number}", place), value)]


def _label(node: exp.Expr) -> str | None:
    """Return the name Postgres gives an expression without one, or None where that is `?column?`."""
    match node:
        case exp.Paren():
            return _label(node.this)
        case exp.Column():
            return identifier(node.this)
        case exp.Anonymous():
            return identifier(node.this) if isinstance(node.this, exp.Identifier) else fold(str(node.this))
        case exp.Cast():
            return _label(node.this) or _TYPE_LABELS.get(str(node.args["to"].this.value).lower())
        case exp.Case():
            otherwise = node.args.get("default")
            return (otherwise is not None and _label(otherwise)) or "case"
        case exp.Bracket():
            return _label(node.this)
        case _:
            return _LABELS.get(type(node))


_LABELS: Final[Mapping[type[exp.Expr], str]] = {
    exp.Array: "array",
    exp.AtTimeZone: "timezone",
    exp.Boolean: "bool",
    exp.Extract: "extract",
    exp.StrPosition: "position",
    exp.Substring: "substring",
    exp.Trim: "btrim",
}
_TYPE_LABELS: Final[Mapping[str, str]] = {
    "bigint": "int8",
    "boolean": "bool",
    "date": "date",
    "decimal": "numeric",
    "double": "float8",
    "float": "float4",
    "int": "int4",
    "smallint": "int2",
    "text": "text",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "varbinary": "bytea",
    "varchar": "varchar",
}


def _keyed(scope: Scope, outputs: list[_Output], predicate: str | None, where: exp.Expr | None) -> BoundView:
    upstream = scope.relation
    passed: dict[str, str] = {}
    for output in outputs:
        if output.value.column is not None:
            passed.setdefault(output.value.column.name, output.name)
    key: list[KeyColumn] = []
    hidden: list[_Output] = []
    for part in upstream.key:
        label = passed.get(part.name)
        if label is None:
            column, label = upstream.column(part.name), _hidden_name(part.name, len(hidden))
            hidden.append(_Output(label, Typed(quoted_name(part.name, 1), column.type, 1, column=column)))
        key.append(KeyColumn(name=label, descending=part.descending))
    every = [*outputs, *hidden]
    for text in (*(output.value.sql for output in every), *filter(None, [predicate])):
        audit(text, upstream)
    return BoundView(
        upstream=upstream,
        query=Stateless(
            projection=tuple(output.value.sql for output in every),
            predicate=predicate,
            pushdown=push_down(scope, [output.value for output in every], where),
        ),
        names=tuple(output.name for output in every),
        hidden=len(hidden),
        key=tuple(key),
        sources=tuple(output.value.column for output in every),
        types=tuple(_untold(output.value) for output in every),
    )


def _hidden_name(name: str, number: int) -> str:
    """Return the name of a hidden key column; that of a view over a view does not grow with the depth."""
    label = name if name.startswith(KEY_PREFIX) else KEY_PREFIX + name
    return label if len(label.encode()) <= NAME_BYTES_MAX else f"{KEY_PREFIX}{number}"


def _untold(value: Typed) -> ColumnType | None:
    return value.type if value.type is not None and value.type.name in _WITHOUT_TWIN else None


def _limit(option: Option | None) -> int | None:
    if option is None:
        return None
    limit = option.integer()
    if limit > RATE_LIMIT_MAX:
        raise Invalid(f"{option.text} is out of range: at most {RATE_LIMIT_MAX}", position=option.position)
    return limit if limit >= 0 else None
