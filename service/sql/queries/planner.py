"""Plan a query bottom up: every query, in FROM or elsewhere, becomes a block with outputs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.protocol.relation import Relation
from service.sql.queries import selects, sets, subqueries
from service.sql.queries.allowed import check, is_aggregate
from service.sql.queries.blocks import Block, Shape
from service.sql.queries.nodes import conjuncts, operand, rewritten
from service.sql.queries.relations import Pending, Relations, projects
from service.sql.queries.scope import Common, Scope
from service.sql.statements.views import CONSTANTS
from service.sql.text.tree import Tree, identifier

STAGES_MAX = 64
"""Each stage costs every epoch a job or a statement of its own, for which everybody waits (I13). A stack of logical
views, each a union of the one below with itself, would multiply them without bound.
"""


_QUERY_STEPS: Final = 50
_COLUMN_STEPS: Final = 3


class TooManySteps(Exception):
    """A query takes more steps to plan than the caller wants to wait for."""


class Planner:
    """The relations and logical views that a query can read, and the hidden relations made so far.

    Raises TooManySteps when it copied about `steps` nodes. The length of a text does not tell: each of a few queries
    can use the values of the one below it several times.
    """

    def __init__(self, relations: Mapping[str, Relation], views: Mapping[str, Tree], steps: float) -> None:
        self.relations, self.views = relations, views
        self._steps = steps
        self.made = Relations()
        self._shared: dict[object, Pending] = {}
        self._stack: list[str] = []
        self._repeated: dict[int, bool] = {}

    def shape(self, name: str) -> Shape:
        """Return the shape of a relation of the catalog."""
        relation = self.relations[name]
        return Shape(
            columns=tuple(one.name for one in relation.visible),
            key=relation.key,
            not_null=frozenset(one.name for one in relation.columns if not one.nullable),
            types={one.name: one.type for one in relation.columns},
            relation=relation.id,
        )

    def _took(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TooManySteps

    def query(self, node: exp.Expr, scope: Scope) -> Block:
        """Return the block of a query. `scope` has the names of the outer query. Raises Invalid and NotFound."""
        block = self._query(node, scope)
        self._took(_QUERY_STEPS + _COLUMN_STEPS * len(block.outputs))
        return block

    def _query(self, node: exp.Expr, scope: Scope) -> Block:
        if len(self.made.pending) > STAGES_MAX:
            raise Invalid(f"the view needs more than {STAGES_MAX} stages", position=scope.tree.start + 1)
        match node:
            case exp.Select():
                return selects.read_select(self, node, scope)
            case exp.SetOperation():
                return sets.read_set(self, node, scope)
            case exp.Subquery() if isinstance(node.this, exp.Query):
                return selects.limited_query(self, node, scope)
            case _:
                place = scope.tree.position(node)
                where = f"here: {CONSTANTS}" if isinstance(node, exp.Values) else "in a view"
                raise Invalid(f"{type(node).__name__.upper()} is not supported {where}", position=place)

    def with_common(self, node: exp.Expr, scope: Scope) -> Scope:
        """Return the scope with the common table expressions of a query."""
        clause = node.args.get("with_")
        if clause is None:
            return scope
        if clause.args.get("recursive"):
            place = scope.tree.position(clause)
            raise Invalid("WITH RECURSIVE is not supported in a view", position=place)
        for one in clause.expressions:
            alias = one.args["alias"]
            columns = tuple(identifier(each) for each in alias.args.get("columns") or [])
            name = identifier(alias.this)
            scope = replace(scope, common={**scope.common, name: Common(name, one.this, columns, scope)})
        return scope

    def common(self, common: Common) -> Block:
        """Return the block of a common table expression."""
        block = self._once(id(common.node), common.node, common.scope, common.name)
        names = common.columns
        outputs = tuple(
            replace(one, name=names[at]) if at < len(names) else one for at, one in enumerate(block.outputs)
        )
        return replace(block, outputs=outputs)

    def view(self, name: str, place: int) -> Block:
        """Return the block of a logical view."""
        if name in self._stack:
            raise Invalid(f'view "{name}" reads itself', position=place)
        self._stack.append(name)
        try:
            view = self.views[name]
            block = self._once(name, view.root, Scope(view), name)
            names = view.named([one.name for one in block.outputs])
            named = tuple(replace(one, name=new) for one, new in zip(block.outputs, names, strict=True))
            return replace(block, outputs=named)
        except (Invalid, NotFound) as error:
            raise Invalid(f'view "{name}": {error}', position=place) from None
        finally:
            self._stack.pop()

    def _once(self, key: object, node: exp.Expr, scope: Scope, name: str) -> Block:
        """Plan a named query that is read in several places once, if it computes more than projections."""
        if key in self._shared:
            return self.made.reading(self._shared[key])
        before = len(self.made.pending)
        block = self.query(node, scope)
        made = self.made.pending[before:]
        if block.only is None or all(map(projects, made)) or not self._read_again(name, scope.tree):
            return block
        pending = self.made.stored(block)
        pending.shared = True
        self._shared[key] = pending
        return self.made.reading(pending)

    def _read_again(self, name: str, tree: Tree) -> bool:
        trees = [self.root, tree, *(self.views.values())]
        found = 0
        for each in {id(one): one for one in trees}.values():
            found += sum(
                isinstance(table.this, exp.Identifier) and identifier(table.this) == name
                for table in each.root.find_all(exp.Table)
            )
        return found > 1

    def where(self, block: Block, node: exp.Expr, scope: Scope) -> Block:
        """Return the block with a condition of WHERE, whose subqueries become further groups."""
        # Plain conditions first: NOT IN wants to know which values have been tested for NULL.
        for one in sorted(conjuncts(node), key=lambda one: one.find(exp.Query) is not None):
            block = subqueries.condition(self, block, one, scope)
        return block

    def value(self, block: Block, node: exp.Expr, scope: Scope) -> tuple[Block, exp.Expr]:
        """Return a resolved expression, and the block with the groups that its scalar subqueries need."""
        blocks = [block]
        value = self._resolved(blocks, node, scope)
        return blocks[0], value

    def grouped_value(self, blocks: list[Block], node: exp.Expr, scope: Scope) -> exp.Expr:
        """Return a resolved expression of a grouped query.

        `blocks` has the block below the aggregate and the one above it. A subquery within an aggregate is joined below.
        """

        def below(part: exp.Expr) -> exp.Expr | None:
            if not is_aggregate(part):
                return None
            blocks[0], value = self.value(blocks[0], part, scope)
            return value

        return self._resolved(blocks, node, scope, below)

    def _resolved(
        self,
        blocks: list[Block],
        node: exp.Expr,
        scope: Scope,
        first: Callable[[exp.Expr], exp.Expr | None] = lambda _: None,
    ) -> exp.Expr:
        """Return a resolved expression. Its scalar subqueries are joined to the last block; `first` may take a part."""

        def replace_part(part: exp.Expr) -> exp.Expr | None:
            taken = first(part)
            if taken is not None:
                return taken
            if isinstance(part, exp.Column):
                check(scope.tree, part)
                value = scope.column(part)
                self._took(sum(1 for _ in value.walk()))
                return operand(value)
            found = subqueries.scalar(self, blocks[-1], part, scope)
            if found is not None:
                blocks[-1], value = found
                return value
            check(scope.tree, part)
            # A text between dollars is printed as any other.
            return exp.Literal.string(part.name) if isinstance(part, exp.RawString) else None

        return rewritten(node, replace_part)

    def plain(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """Return a resolved expression without subqueries."""
        query = node.find(exp.Query)
        if query is not None:
            message = "a subquery in the ON of an outer join is not supported in a view: join it in FROM"
            raise Invalid(message, position=scope.tree.position(query))
        return self.value(Block(()), node, scope)[1]

    root: Tree


def planned(
    tree: Tree, relations: Mapping[str, Relation], views: Mapping[str, Tree], steps: float = math.inf
) -> tuple[Planner, Block]:
    """Return the block of a whole query and the planner that has its hidden relations."""
    planner = Planner(relations, views, steps)
    planner.root = tree
    return planner, planner.query(tree.root, Scope(tree))
