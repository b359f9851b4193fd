"""The Spark texts of a stage that a test has written as text. The planner has trees of its own."""

from collections.abc import Mapping

from sqlglot import exp

from service.protocol.ids import RelationId
from service.protocol.relation import Relation
from service.protocol.stage import Stage
from service.sql.queries import spark
from service.sql.queries.drafts import Trees
from service.sql.text.tree import Tree


def tree_of(text: str) -> exp.Expr:
    """Parse an expression."""
    whole = f"select {text}"
    return Tree(whole, 0, len(whole)).root.expressions[0]


def with_spark(stage: Stage, relations: Mapping[RelationId, Relation], target: Relation) -> Stage:
    """Return the stage with the Spark texts of its expressions."""
    aggregate, partition = stage.aggregate, stage.partition
    every = (*stage.conditions, *stage.rows, *(() if aggregate is None else (*aggregate.results, *aggregate.looks)))
    trees = Trees({one.sql: tree_of(one.sql) for one in every})
    if partition is not None:
        trees[partition.sql] = Tree(partition.sql, 0, len(partition.sql)).root
    return spark.with_spark(stage, trees, relations, target)


def check_trees(trees: Trees) -> None:
    """Check that Postgres, which reads the text of an expression, reads what Spark's text is made from (I12)."""
    for text, node in trees.items():
        read = Tree(text, 0, len(text)).root if isinstance(node, exp.Select) else tree_of(text)
        assert _whole(read) == _whole(node), f"{text}: {read!r} is not {node!r}"


def _whole(node: exp.Expr) -> exp.Expr:
    """Return a tree with what an order and a frame have if nothing is written."""
    made = node.copy()
    for one in made.find_all(exp.Ordered, exp.WindowSpec):
        name, default = ("nulls_first", False) if isinstance(one, exp.Ordered) else ("end", "CURRENT ROW")
        one.set(name, one.args.get(name) or default)
    return made
