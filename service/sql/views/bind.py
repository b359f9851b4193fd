"""Bind the query of CREATE MATERIALIZED VIEW to scans: each is a projection and a filter over one relation.

A query without UNION ALL has one scan, and a union has one per branch. Next: `service.sql.views.keys`.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.protocol.columns import Column, ColumnType
from service.protocol.relation import Relation, RelationKind
from service.sql.expressions.operators import truth
from service.sql.expressions.scalar import Scope
from service.sql.expressions.typed import Typed, coerced, common_type, settled
from service.sql.statements.tables import UNBOUND
from service.sql.statements.views import CONSTANTS, CreateMaterializedView
from service.sql.text.cursor import SCHEMA, checked_column
from service.sql.text.labels import label
from service.sql.text.tree import Tree, given, identifier
from service.sql.views.backfill_order import bind_order
from service.sql.views.keys import BoundScan, BoundView, Branch, Output, check_widths, keyed, united
from service.sql.views.pushdown import Condition

SCANS_MAX: Final = 64
"""Each scan costs a barrier a job of its own, for which everybody waits (I13). A stack of logical views, each a union
of the one below with itself, would even grow without bound.
"""
_NO_VIEWS: Final[Mapping[str, Tree]] = MappingProxyType({})

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


def bind_view(
    statement: CreateMaterializedView, relations: Mapping[str, Relation], views: Mapping[str, Tree] = _NO_VIEWS
) -> BoundView:
    """Return the bound query of a view over the existing relations. Raises Invalid and NotFound.

    A logical view that the query reads, one of `views`, is replaced by the scans of its query.
    """
    try:
        return _bind(statement, _Catalog(relations, views))
    except RecursionError:
        raise Invalid("the query is nested too deeply", position=statement.query.start + 1) from None


def view_relation(bound: BoundView, columns: Sequence[Sequence[Column]], name: str) -> Relation:
    """Return the view's relation. `columns` are the columns of each scan as Spark types them, in order, hidden ones
    included.

    Raises Invalid if the branches of a union do not agree.
    """
    visible = len(bound.names) - bound.hidden
    made: list[Column] = []
    for place, column_name in enumerate(bound.names):
        given_types = [_type(scan, typed, place) for scan, typed in zip(bound.scans, columns, strict=True)]
        kind = given_types[0]
        for scan, other in zip(bound.scans[1:], given_types[1:], strict=True):
            kind = common_type(kind, other, position=scan.places[place])
        nullable = any(_nullable(scan, typed, place) for scan, typed in zip(bound.scans, columns, strict=True))
        made.append(Column(name=column_name, type=kind, nullable=nullable, hidden=place >= visible))
    return Relation(
        id=UNBOUND,
        name=name,
        kind=RelationKind.MATERIALIZED_VIEW,
        columns=tuple(made),
        key=bound.key,
        vnode_count=max(scan.upstream.vnode_count for scan in bound.scans),
    )


def _type(scan: BoundScan, typed: Sequence[Column], place: int) -> ColumnType:
    source = scan.sources[place]
    return source.type if source is not None else scan.types[place] or typed[place].type


def _nullable(scan: BoundScan, typed: Sequence[Column], place: int) -> bool:
    source = scan.sources[place]
    return source.nullable if source is not None else typed[place].nullable


def _bind(statement: CreateMaterializedView, catalog: "_Catalog") -> BoundView:
    first, *others = _branches(statement.query, catalog)
    names = statement.query.named([one.name for one in first.outputs])
    outputs = [replace(one, name=name) for one, name in zip(first.outputs, names, strict=True)]
    branches = [replace(first, outputs=outputs), *others]
    _check_names(branches[0].outputs)
    known = {*catalog.relations, *catalog.views}
    order = bind_order(statement.order, [branch.scope.relation.name for branch in branches], known)
    return replace(keyed(branches[0]) if len(branches) == 1 else united(branches), order=order)


def _selects(tree: Tree, node: exp.Expr) -> Iterator[exp.Select]:
    """Yield the queries that UNION ALL combines, in order. Raises Invalid for any other query."""
    match node:
        case exp.Select():
            yield node
        case exp.Union() if not node.args.get("distinct"):
            _check_clauses(tree, node, {"this", "expression"})
            yield from _selects(tree, node.this)
            yield from _selects(tree, node.expression)
        case exp.Subquery() if node is not tree.root and given(node) == frozenset({"this"}):
            yield from _selects(tree, node.this)
        case _:
            what: dict[type[exp.Expr], str] = {
                exp.Union: "UNION without ALL",
                exp.Except: "EXCEPT",
                exp.Intersect: "INTERSECT",
                exp.Subquery: "a subquery",
            }
            called = what.get(type(node), type(node).__name__.upper())
            raise Invalid(f"{called} is not supported in a view", position=tree.position(node))


@dataclass(frozen=True, slots=True)
class _Catalog:
    """The relations and the logical views (with their queries) that a query may read, by name."""

    relations: Mapping[str, Relation]
    views: Mapping[str, Tree]

    def __contains__(self, name: str) -> bool:
        return name in self.relations or name in self.views


@dataclass(frozen=True, slots=True)
class _Source:
    """A relation as a SELECT sees it, and the conditions of the logical views between the two."""

    scope: Scope
    conditions: tuple[Condition, ...] = ()


def _branches(tree: Tree, catalog: _Catalog) -> list[Branch]:
    branches: list[Branch] = []
    for select in _selects(tree, tree.root):
        branches += _of_select(tree, select, catalog)
        if len(branches) > SCANS_MAX:
            raise Invalid(
                f"the view has more than {SCANS_MAX} scans, one for each SELECT of UNION ALL",
                position=tree.position(select),
            )
    return branches


def _of_select(tree: Tree, select: exp.Select, catalog: _Catalog) -> Iterator[Branch]:
    """Yield one branch per relation to which the relation in FROM expands."""
    _check_clauses(tree, select, {"expressions", "from_", "where"})
    where = select.args.get("where")
    for source in _from(tree, select.args.get("from_"), catalog):
        scope, conditions = source.scope, source.conditions
        outputs = _outputs(scope, select.expressions)
        if not outputs:
            raise Invalid("a view needs a column", position=tree.start + 1)
        if where is not None:
            conditions = (*conditions, Condition(scope, where.this, truth(scope.bind(where.this), "WHERE")))
        yield Branch(scope, outputs, conditions)


def _check_clauses(tree: Tree, select: exp.Expr, known: AbstractSet[str]) -> None:
    for clause in sorted(given(select) - known):
        part = select.args[clause]
        part = part[0] if isinstance(part, list) else part
        place = tree.position(part) if isinstance(part, exp.Expr) else tree.start + 1
        raise Invalid(f"{_CLAUSES.get(clause, clause.upper())} is not supported in a view", position=place)


def _from(tree: Tree, clause: exp.Expr | None, catalog: _Catalog) -> list[_Source]:
    if clause is None:
        raise Invalid(f"FROM is missing: {CONSTANTS}", position=tree.start + 1)
    table = clause.this
    place = tree.position(table)
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        if isinstance(table, exp.Subquery):
            raise Invalid("a subquery in FROM is not supported in a view", position=place)
        raise Invalid(f"a function or a list of values in FROM is not supported here: {CONSTANTS}", position=place)
    if extra := given(table) - {"this", "db", "alias"}:
        called = _CLAUSES.get(min(extra), min(extra).upper())
        raise Invalid(f"{called} is not supported in a view", position=place)
    name, schema = identifier(table.this), table.args.get("db")
    shown = name if schema is None else f"{identifier(schema)}.{name}"
    foreign = schema is not None and identifier(schema) != SCHEMA
    if foreign or name not in catalog:
        raise NotFound(f'relation "{shown}" does not exist', kind="relation", position=place)
    alias = table.args.get("alias")
    if alias is not None and given(alias) != frozenset({"this"}):
        raise Invalid("column aliases in FROM are not supported in a view", position=place)
    return _sources(tree, name, place, frozenset({identifier(alias.this) if alias is not None else name}), catalog)


def _sources(tree: Tree, name: str, place: int, qualifiers: frozenset[str], catalog: _Catalog) -> list[_Source]:
    """Return a relation unchanged, and a logical view as the relations that its query reads."""
    if name in catalog.relations:
        return [_Source(Scope(tree, catalog.relations[name], qualifiers))]
    try:
        branches = _branches(catalog.views[name], catalog)
        columns = _matched(branches, catalog.views[name])
    except (Invalid, NotFound) as error:
        raise Invalid(f'view "{name}": {error}', position=place) from None
    return [
        _Source(Scope(tree, branch.scope.relation, qualifiers, derived, branch.scope.computed), branch.conditions)
        for branch, derived in zip(branches, columns, strict=True)
    ]


def _matched(branches: Sequence[Branch], view: Tree) -> list[Mapping[str, Typed]]:
    """Return the columns of a logical view in each of its branches. A column has the same type in all branches."""
    first = branches[0].outputs
    names = view.named([one.name for one in first])
    first = [replace(one, name=name) for one, name in zip(first, names, strict=True)]
    _check_names(first)
    check_widths(branches)
    kinds: list[ColumnType] = []
    for place, output in enumerate(first):
        kind = output.value.type
        for branch in branches:
            other = branch.outputs[place].value
            assert kind is not None
            assert other.type is not None
            kind = common_type(kind, other.type, position=other.position)
        assert kind is not None
        kinds.append(kind)
    return [
        {
            output.name: replace(coerced(value.value, kind), literal=None)
            for output, value, kind in zip(first, branch.outputs, kinds, strict=True)
        }
        for branch in branches
    ]


def _outputs(scope: Scope, nodes: Sequence[exp.Expr]) -> list[Output]:
    outputs: list[Output] = []
    for node in nodes:
        outputs += _expanded(scope, node, len(outputs) + 1)
    return outputs


def _check_names(outputs: Sequence[Output]) -> None:
    seen: set[str] = set()
    for output in outputs:
        if output.name in seen:
            raise Invalid(f'column "{output.name}" specified more than once', position=output.value.position)
        seen.add(output.name)


def _expanded(scope: Scope, node: exp.Expr, number: int) -> list[Output]:
    place = scope.tree.position(node)
    star = node.this if isinstance(node, exp.Column) else node
    if isinstance(star, exp.Star):
        scope.reads(star)
        if isinstance(node, exp.Column):
            scope.reads(node, "this", "table")
            scope.qualifier(node.args.get("table"))
        return [Output(name, value) for name in scope.names if (value := scope.named(name, place)) is not None]
    if isinstance(node, exp.Alias):
        scope.reads(node, "this", "alias")
        name = checked_column(identifier(node.args["alias"]), scope.tree.position(node.args["alias"]))
        return [Output(name, settled(scope.argument(node)))]
    value = settled(scope.bind(node))
    return [Output(checked_column(label(node) or f"column{number}", place), value)]
