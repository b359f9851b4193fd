"""The expressions of a view over one table, as its only stage has them, bound for Spark."""

from collections.abc import Mapping
from dataclasses import dataclass

from service.protocol.relation import Relation
from service.sql.expressions.operators import truth
from service.sql.expressions.scalar import Name
from service.sql.expressions.typed import Typed, quoted_name, settled
from service.sql.parse import parse
from service.sql.queries.audit import audit
from service.sql.queries.drafts import Draft
from service.sql.queries.plan import plan_query
from service.sql.queries.spark import standing
from service.sql.queries.spark_scope import StoreScope
from service.sql.statements.tables import CreateTable, table_relation
from service.sql.statements.views import CreateMaterializedView
from service.sql.text.tree import Tree

HEAD = "create materialized view m as "


@dataclass(frozen=True)
class Bound:
    """The values of a SELECT list, and the conditions of its WHERE in Spark SQL over the table's column names."""

    values: tuple[Typed, ...]
    conditions: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The values in Spark SQL."""
        return tuple(value.sql for value in self.values)


def table(text: str) -> Relation:
    """Return the relation of a CREATE TABLE."""
    statement = parse(text)
    assert isinstance(statement, CreateTable)
    return table_relation(statement)


def query_of(query: str) -> Tree:
    """Parse the query of a view. Raises Invalid."""
    statement = parse(HEAD + query)
    assert isinstance(statement, CreateMaterializedView)
    return statement.query


def bound(query: Tree, relation: Relation, views: Mapping[str, Tree] | None = None) -> Bound:
    """Plan `query`, and bind all of its expressions for Spark. Raises Invalid and NotFound."""
    count = len(query.root.expressions)
    (draft,) = plan_query(query, {relation.name: relation}, views or {}, [f"c{place}" for place in range(count)])
    return bound_draft(draft, relation, count)


def bound_draft(draft: Draft, relation: Relation, count: int) -> Bound:
    """Bind the first values of a projection, and its conditions. Raises Invalid and NotFound."""
    (join,) = draft.joins
    (one,) = join.inputs
    values: dict[Name, Typed] = {
        (one.alias, column.name): Typed(quoted_name(column.name), column.type, column=column)
        for column in relation.columns
        if "${" not in column.name
    }

    def value(sql: str) -> Typed:
        return settled(StoreScope(values).bind(standing(draft.trees[sql])))

    def condition(sql: str) -> str:
        return truth(StoreScope(values).bind(standing(draft.trees[sql])), "WHERE")

    found = Bound(
        tuple(value(row.sql) for row in draft.rows[:count]),
        tuple(condition(each.sql) for each in (*join.on, *draft.where)),
    )
    for text in (*found.texts, *found.conditions):
        audit(text, {column.name for column in relation.columns})
    return found
