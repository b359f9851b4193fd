"""Find the one stored input of a partition stage, and make orders within it total."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from service.sql.expressions.allowed import called_name
from service.sql.expressions.functions import FUNCTIONS
from service.sql.queries.blocks import Block, Occurrence, Output, foreign
from service.sql.queries.nodes import aliases_of, bare, built, column, columns_of, named, printed, rewritten

if TYPE_CHECKING:
    from service.sql.queries.planner import Planner

PART: Final = "part"
_ORDERED: Final = frozenset(name for name, row in FUNCTIONS.items() if row.ordered)
"""Aggregates whose result can depend on the order of rows."""
LEAST: Final = frozenset({"min", "max"})
"""Aggregates that choose among equal values by the order of rows. Equal ones may look different, as -0 and 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The input of a partition stage.

    `where` are conditions over it, `columns` those that hold the expressions by which it is partitioned, and `values`
    the columns for further expressions of the block, by their text.
    """

    one: Occurrence
    where: tuple[exp.Expr, ...]
    columns: tuple[str, ...]
    values: dict[str, str]

    def over_part(self, value: exp.Expr) -> exp.Expr:
        """Return an expression of the block as one over `part`."""

        def replaced(node: exp.Expr) -> exp.Expr | None:
            name = self.values.get(printed(node))
            if name is not None:
                return column(PART, name)
            if isinstance(node, exp.Column):
                return column(PART, named(node)[1])
            return None

        return rewritten(value, replaced)

    @property
    def key(self) -> tuple[exp.Column, ...]:
        """The key of the input, over `part`."""
        return tuple(column(PART, part.name) for part in self.one.shape.key)


def stored_input(planner: "Planner", block: Block, partition: Sequence[exp.Expr], values: Iterable[exp.Expr]) -> Source:
    """Return the stored input of a block: its only relation, or else a hidden one of the rows of the block."""
    values = list(values)
    if foreign(block) or any(aliases_of(one) - block.aliases for one in (*partition, *values)):
        planner.made.refuse_outer()
    only = block.only
    plain = [bare(one) for one in partition]
    if only is not None and not block.where and all(isinstance(one, exp.Column) for one in plain):
        columns = tuple(named(one)[1] for one in plain if isinstance(one, exp.Column))
        return Source(only, block.core.on, columns, {})
    wanted = {printed(one): one for one in plain}
    for value in values:
        for at in columns_of(value):
            wanted.setdefault(printed(column(*at)), column(*at))
    outputs = tuple(Output(_name(one, number), one) for number, one in enumerate(wanted.values()))
    if not outputs:
        outputs = (Output("one", exp.Literal.number(1)),)
    pending = planner.made.stored(replace(block, outputs=outputs))
    reading = planner.made.reading(pending)
    only = reading.only
    assert only is not None
    names = dict(zip(wanted, only.shape.columns, strict=False))
    return Source(only, (), tuple(names[printed(one)] for one in plain), names)


def _name(value: exp.Expr, number: int) -> str:
    return named(value)[1] if isinstance(value, exp.Column) else f"value_{number}"


def sorting_columns(items: Sequence[exp.Ordered]) -> tuple[str, ...]:
    """Return the leading columns of an order over `part` that an index can have: plain, and all in one direction.

    An index without options sorts NULLs last, or first if it is read backwards.
    """
    found: list[str] = []
    for item in items:
        inner, descending = bare(item.this), bool(item.args.get("desc"))
        if (
            not isinstance(inner, exp.Column)
            or descending != bool(items[0].args.get("desc"))
            or bool(item.args.get("nulls_first")) != descending
        ):
            break
        found.append(named(inner)[1])
    return tuple(dict.fromkeys(found))


def first_of(value: exp.Expr, order: Sequence[exp.Expr]) -> exp.Expr:
    """Return the value that the first row has."""
    return built("({0})[1]", ordered_within(built("array_agg({0})", value), order))


def ordered_within(call: exp.Expr, order: Sequence[exp.Expr], names: Collection[str] = _ORDERED) -> exp.Expr:
    """Return an aggregate, if it is one of `names`, over rows in a total order: that written, then that of the key."""
    if isinstance(call, exp.Filter):
        return exp.Filter(this=ordered_within(call.this, order, names), expression=call.expression)
    if not isinstance(call, exp.Anonymous) or called_name(call) not in names or not call.expressions:
        return call
    last = call.expressions[-1]
    if any(isinstance(one, exp.Distinct) for one in call.expressions) or _is_distinct(last):
        return call
    written = list(last.expressions) if isinstance(last, exp.Order) else []
    inner = last.this if isinstance(last, exp.Order) else last
    every = exp.Order(this=inner, expressions=[*written, *(exp.Ordered(this=one.copy()) for one in order)])
    return exp.Anonymous(this=call.this, expressions=[*call.expressions[:-1], every])


def _is_distinct(node: exp.Expr) -> bool:
    return isinstance(node, exp.Order) and isinstance(node.this, exp.Distinct)
