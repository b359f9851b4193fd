"""Define a draft: one stage before the types of its columns are known.

A draft can travel between processes, with the trees of its expressions: to read them from text takes longer. Several
drafts may write one relation (`target`): the branches of a UNION ALL or the grouping sets of a GROUP BY. The last draft
writes the view.
"""

from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from service.protocol.columns import KeyColumn
from service.protocol.relation import Relation
from service.protocol.stage import Condition, Join, Partition, Stage, Value
from service.sql.queries.nodes import printed


class Trees(dict[str, exp.Expr]):
    """The trees of expressions by their texts in the store's SQL."""

    def text(self, node: exp.Expr) -> str:
        """Print an expression whose tree is needed again."""
        sql = printed(node)
        self.setdefault(sql, node)
        return sql


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an aggregate that is a sum of contributions.

    `node` is the whole call. `argument` is None for `count(*)`, and has no NULL if it is `sure`. Only rows that satisfy
    `filter` count.
    """

    function: str
    node: exp.Expr
    argument: exp.Expr | None = None
    filter: exp.Expr | None = None
    sure: bool = False


CALLS: Final = "c"
"""The qualifier of `call_0`, `call_1`, ... in a result: the values of the calls."""


@dataclass(frozen=True, slots=True)
class Result:
    """A column computed from keys (by name) and calls."""

    name: str
    node: exp.Expr


@dataclass(frozen=True, slots=True)
class Grouping:
    """The aggregate of a draft whose `rows` are the group's keys.

    Keys in `padded` are NULL in this draft, because another draft of the target groups by them. A group looks as its
    rows that satisfy `seen` do.
    """

    calls: tuple[Call, ...]
    results: tuple[Result, ...]
    always: bool
    padded: frozenset[str] = frozenset()
    seen: exp.Expr | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """One stage without types.

    `columns` are the target's columns in order; the first `visible` ones are not hidden. An aggregate's sums follow
    them. A `final` draft writes the view. `rows` are all columns, or an aggregate's keys, or nothing for a partition.
    `seen` is the query of the partition if a column has values that are equal and look different.
    `branches` has the joins and the rows of all drafts of a target of several branches, so that their common types can
    be described. `trees` has the tree of each expression.
    """

    target: int
    joins: tuple[Join, ...]
    where: tuple[Condition, ...]
    rows: tuple[Value, ...]
    columns: tuple[str, ...]
    visible: int
    key: tuple[KeyColumn, ...]
    distribution: tuple[str, ...]
    not_null: frozenset[str]
    trees: Trees
    grouping: Grouping | None = None
    partition: Partition | None = None
    final: bool = False
    seen: str | None = None
    branches: tuple[tuple[tuple[Join, ...], tuple[Value, ...]], ...] = ()
    places: dict[str, int] = field(default_factory=dict[str, int])
    """The position of each column in the statement, as far as known."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A stage and the relation that it writes."""

    stage: Stage
    relation: Relation
