"""Print the expressions of an INSERT, UPDATE or DELETE for the worker, from the parsed tree, in Postgres's SQL.

Every value is cast to its column's type, and every relation becomes its view of alive rows. The worker embeds these
texts in its own queries. An expression that Postgres would refuse in a statement that changes rows is therefore refused
here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.protocol.columns import Column
from service.protocol.dml import live_view
from service.protocol.relation import RESERVED_COLUMNS, Relation
from service.sql.expressions.allowed import check_allowed
from service.sql.expressions.functions import AGGREGATES
from service.sql.statements.select import named_relations
from service.sql.text.cursor import SCHEMA
from service.sql.text.tree import Dialect, Tree, given, identifier

CONSTANTS: Final = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
"""Functions without parentheses, which the parser takes for columns."""


@dataclass(frozen=True, slots=True)
class RowScope:
    """The names in a statement: the target's columns (if `columns_visible`) and the catalog's relations."""

    tree: Tree
    target: Relation
    qualifiers: frozenset[str]
    relations: Mapping[str, Relation]
    columns_visible: bool = True

    def value(self, node: exp.Expr, column: Column) -> str:
        """Print the value for a column, cast to its type. Raises Invalid and NotFound."""
        if _is_default(node) and column.default is not None:
            return f"CAST({column.default} AS {column.type})"
        if isinstance(node, exp.Null) or _is_default(node):
            if not column.nullable:
                raise null_violation(self.target, column.name, self.tree.position(node))
            return f"CAST(NULL AS {column.type})"
        text = self.printed(node)
        if any(not _inside_query(function, node) for function in node.find_all(exp.Anonymous)):
            # Within CASE Postgres refuses a function that returns several rows. The worker's SELECT would accept it.
            text = f"CASE WHEN TRUE THEN {text} END"
        return f"CAST({text} AS {column.type})"

    def predicate(self) -> str | None:
        """Print the statement's WHERE condition, or return None. Raises Invalid and NotFound."""
        where = self.tree.root.args.get("where")
        return None if where is None else self.printed(where.this)

    def printed(self, node: exp.Expr) -> str:
        """Print an expression with every relation replaced by its live view. The tree itself does not change."""
        copied = node.copy()
        # The copied root has lost its ancestors. No common table expression can be among them.
        holder = exp.Paren(this=copied)
        for part in list(holder.walk()):
            self._check(part)
        for column in list(holder.find_all(exp.Column)):
            self._check_column(column)
        for table in list(named_relations(holder)):
            self._rewrite(table)
        # The printed parentheses keep the operand together wherever the worker embeds it.
        return holder.sql(dialect=Dialect, comments=False, normalize_functions=False)

    def _check(self, node: exp.Expr) -> None:
        """Refuse a node that Postgres refuses in a statement that changes rows but accepts in the worker's query."""
        check_allowed(self.tree, node)
        place = self.tree.position(node)
        if isinstance(node, exp.Parameter | exp.Placeholder | exp.SessionParameter):
            raise Invalid("a parameter is not supported", position=place)
        if node.find_ancestor(exp.Query) is not None:
            return
        if isinstance(node, exp.Star):
            raise Invalid('syntax error at or near "*"', position=place)
        if isinstance(node, exp.Alias | exp.PropertyEQ | exp.Lambda):
            raise Invalid("syntax error", position=place)
        if isinstance(node, exp.Sqrt | exp.Cbrt):
            raise Invalid("|/ and ||/ are not supported: use sqrt and cbrt", position=place)
        if isinstance(node, exp.Window):
            raise Invalid("window functions are not allowed here", position=place)
        if isinstance(node, exp.Anonymous) and str(node.name).lower() in AGGREGATES:
            raise Invalid(f"aggregate function {node.name} is not allowed here", position=place)

    def _check_column(self, node: exp.Column) -> None:
        place, query = self.tree.position(node), node.find_ancestor(exp.Query)
        name = None if isinstance(node.this, exp.Star) else identifier(node.this)
        if name in RESERVED_COLUMNS:
            raise _no_column(str(name), place)
        table = node.args.get("table")
        qualified = table is not None and identifier(table) in self.qualifiers
        if query is not None:
            if qualified and not _read_as(node, identifier(table)):
                self._correlate(node, place)
            return
        if name is None or _is_constant(node):
            return
        if table is not None and not qualified:
            message = f'missing FROM-clause entry for table "{identifier(table)}"'
            raise NotFound(message, kind="relation", position=place)
        if not self.columns_visible or all(column.name != name for column in self.target.visible):
            raise _no_column(name, place)
        node.set("table", None)
        node.set("db", None)

    def _correlate(self, node: exp.Column, place: int) -> None:
        """Rewrite a subquery's reference to the changed row, to name that row by the table's own name."""
        if _read_as(node, self.target.name):
            message = f'a subquery that reads "{self.target.name}" needs an alias for it here'
            raise Invalid(message, position=place)
        node.set("table", exp.to_identifier(self.target.name, quoted=True))
        node.set("db", None)

    def _rewrite(self, table: exp.Table) -> None:
        name, schema = identifier(table.this), table.args.get("db")
        place = self.tree.position(table)
        if (schema is not None and identifier(schema) != SCHEMA) or name not in self.relations:
            shown = name if schema is None else f"{identifier(schema)}.{name}"
            raise NotFound(f'relation "{shown}" does not exist', kind="relation", position=place)
        if table.args.get("alias") is None:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
        table.set("this", exp.to_identifier(name, quoted=True))
        table.set("db", exp.to_identifier("live"))
        assert table.sql(dialect=Dialect).startswith(live_view(name)), table


def _is_default(node: exp.Expr) -> bool:
    if isinstance(node, exp.Var):
        return node.name.lower() == "default"
    name = node.this if isinstance(node, exp.Column) and given(node) == frozenset({"this"}) else None
    return isinstance(name, exp.Identifier) and not name.args.get("quoted") and identifier(name) == "default"


def _inside_query(node: exp.Expr, root: exp.Expr) -> bool:
    """Whether a query lies between the node and `root`, which may itself be a query."""
    at: exp.Expr | None = node
    while at is not None and not isinstance(at, exp.Query):
        if at is root:
            return False
        at = at.parent
    return True


def _is_constant(node: exp.Column) -> bool:
    return (
        given(node) == frozenset({"this"}) and not node.this.args.get("quoted") and identifier(node.this) in CONSTANTS
    )


def _read_as(node: exp.Column, name: str) -> bool:
    """Whether a query around the column reads a relation or subquery under that name."""
    query = node.find_ancestor(exp.Query)
    while query is not None:
        sources = [
            table for table in query.find_all(exp.Table, exp.Subquery) if table.find_ancestor(exp.Query) is query
        ]
        if any(source.alias_or_name == name for source in sources):
            return True
        query = query.find_ancestor(exp.Query)
    return False


def null_violation(relation: Relation, column: str, position: int) -> Invalid:
    """Return Postgres's error for a NULL in a column that allows none."""
    message = f'null value in column "{column}" of relation "{relation.name}" violates not-null constraint'
    return Invalid(message, position=position)


def _no_column(name: str, position: int) -> NotFound:
    return NotFound(f'column "{name}" does not exist', kind="column", position=position)
