"""Find the backfill order AUTO of a query: the other sides of each join are read before its left-most relation.

A join pads and rewrites less if the sides that are looked up, usually the small ones, come first. Operators of one
input are transparent, and each branch of a UNION has a left-most relation of its own. A subquery of a condition or an
expression is the right side of a join. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from service.sql.text.tree import Tree, identifier

Common = Mapping[str, tuple[exp.Expr, "Common"]]
"""The common table expressions in scope, each with those that it can name itself."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    name: str


@dataclass(frozen=True, slots=True)
class _Join:
    left: "_Plan"
    right: "_Plan"


@dataclass(frozen=True, slots=True)
class _Union:
    branches: "tuple[_Plan, ...]"


_Plan = _Leaf | _Join | _Union


def auto_order(tree: Tree, views: Mapping[str, Tree]) -> tuple[tuple[str, str], ...]:
    """Return the edges (before, after) over the names of relations, each once. They may form a cycle.

    Postgres has accepted the query, and the planner of stages has planned it.
    """
    found = _Edges()
    found.visit(_Reader(views).query(tree.root, {}), frozenset(), leftmost=True)
    return tuple(found.edges)


@dataclass
class _Edges:
    edges: dict[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])

    def visit(self, plan: _Plan, prior: frozenset[str], *, leftmost: bool) -> frozenset[str]:
        """Add the edges of a plan, whose left-most relations come after `prior`, and return these relations."""
        match plan:
            case _Leaf(name):
                self.edges.update(dict.fromkeys((before, name) for before in sorted(prior) if leftmost))
                return frozenset({name})
            case _Join(left, right):
                first = self.visit(right, frozenset(), leftmost=False)
                return self.visit(left, prior | first, leftmost=True)
            case _Union(branches):
                return frozenset().union(*(self.visit(one, prior, leftmost=leftmost) for one in branches))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the joins of a query. A name is a relation's if it is neither a view's nor that of a `WITH`."""

    views: Mapping[str, Tree]

    def query(self, node: exp.Expr, common: Common) -> _Plan:
        clause = node.args.get("with_")
        for one in [] if clause is None else clause.expressions:
            common = {**common, identifier(one.args["alias"].this): (one.this, common)}
        match node:
            case exp.Select():
                return self._select(node, common)
            case exp.Union():
                return _Union((self.query(node.this, common), self.query(node.expression, common)))
            case exp.SetOperation():
                return _Join(self.query(node.this, common), self.query(node.expression, common))
            case _:
                return self.query(node.this, common)

    def _select(self, node: exp.Select, common: Common) -> _Plan:
        plan = self._joined(node.args["from_"].this, node.args.get("joins") or [], common)
        inner = [node.args.get("where"), *node.expressions, node.args.get("having"), *(node.args.get("joins") or [])]
        for part in inner:
            for one in _subqueries(part.args.get("on") if isinstance(part, exp.Join) else part):
                plan = _Join(plan, self.query(one, common))
        return plan

    def _joined(self, first: exp.Expr, joins: list[exp.Expr], common: Common) -> _Plan:
        plan = self._item(first, common)
        for join in joins:
            plan = _Join(plan, self._joined(join.this, [], common))
        return plan

    def _item(self, node: exp.Expr, common: Common) -> _Plan:
        plan = self._alone(node, common)
        for join in node.args.get("joins") or []:
            plan = _Join(plan, self._joined(join.this, [], common))
        return plan

    def _alone(self, node: exp.Expr, common: Common) -> _Plan:
        if isinstance(node, exp.Subquery):
            in_parentheses = isinstance(node.this, exp.Subquery | exp.Table)
            return self._item(node.this, common) if in_parentheses else self.query(node, common)
        name = identifier(node.this)
        if name in common and node.args.get("db") is None:
            return self.query(*common[name])
        return self.query(self.views[name].root, {}) if name in self.views else _Leaf(name)


def _subqueries(node: exp.Expr | None) -> Iterator[exp.Expr]:
    """Yield the outermost queries in an expression."""
    if isinstance(node, exp.Query):
        yield node
    elif node is not None:
        for one in node.iter_expressions():
            yield from _subqueries(one)
