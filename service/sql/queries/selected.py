"""Define a SELECT between its FROM and its result."""

from dataclasses import dataclass

from sqlglot import exp

from service.protocol.stage import JoinKind
from service.sql.queries.blocks import Block, Group, Output

EMPTY = Block((Group(JoinKind.INNER, ()),))
"""A block without inputs."""


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """A SELECT while it is being read. All expressions are resolved.

    `having` are conditions, `order` the items of ORDER BY, and `after` the inputs that are joined above the aggregate.
    """

    block: Block
    outputs: tuple[Output, ...]
    having: tuple[exp.Expr, ...] = ()
    order: tuple[exp.Ordered, ...] = ()
    distinct_on: tuple[exp.Expr, ...] = ()
    after: Block = EMPTY
