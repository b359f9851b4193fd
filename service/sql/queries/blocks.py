"""Define a block: inputs that are joined, conditions and outputs. It is what one stage evaluates.

The first group is the core, whose inputs are joined inner. Every other group is an attachment, as in
`service.protocol.stage`. Functions of this module return new blocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import ColumnType, KeyColumn
from service.protocol.stage import JoinKind
from service.sql.queries.nodes import (
    aliases_of,
    bare,
    column,
    common_conjuncts,
    conjuncts,
    is_null_with,
    named,
    realiased,
    rejects_nulls,
)

if TYPE_CHECKING:
    from service.sql.queries.relations import Pending

INPUTS_MAX: Final = 64
"""A change of one input looks up all others. A few CTEs, each a join of the last one with itself, would multiply the
inputs, and with them the work of everything that plans, prints and computes the join (I13).
"""
INNER_MAX: Final = 32
"""Of these, at most so many are joined inner with each other. Postgres had no memory left to plan the changes of 64."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """The columns of a relation that a block reads.

    `columns` are those that a query can name. `single` says that it has at most one row. `types` has the known types.
    A hidden relation of the same view is `pending`.
    """

    columns: tuple[str, ...]
    key: tuple[KeyColumn, ...]
    not_null: frozenset[str]
    types: Mapping[str, ColumnType]
    relation: int = 0
    single: bool = False
    pending: "Pending | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class Occurrence:
    """One input of a block."""

    alias: str
    shape: Shape


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Inputs that are joined inner with each other, and how they join the inputs before them."""

    kind: JoinKind
    inputs: tuple[Occurrence, ...]
    on: tuple[exp.Expr, ...] = ()

    @property
    def aliases(self) -> frozenset[str]:
        """The aliases of the inputs."""
        return frozenset(one.alias for one in self.inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """One column that a query gives. `place` is its position in the statement."""

    name: str
    value: exp.Expr
    place: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A select-project-join block. `where` holds after all joins.

    `total` says that the outputs are also right where a correlated block has no row: an aggregate over nothing.
    """

    groups: tuple[Group, ...]
    where: tuple[exp.Expr, ...] = ()
    outputs: tuple[Output, ...] = ()
    total: bool = False

    @property
    def core(self) -> Group:
        """The inputs that are joined inner."""
        return self.groups[0]

    @property
    def visible(self) -> tuple[Occurrence, ...]:
        """The inputs whose columns an output may read."""
        kinds = (JoinKind.INNER, JoinKind.LEFT)
        return tuple(one for group in self.groups if group.kind in kinds for one in group.inputs)

    @property
    def aliases(self) -> frozenset[str]:
        """The aliases of the inputs whose columns an output may read."""
        return frozenset(one.alias for one in self.visible)

    @property
    def only(self) -> Occurrence | None:
        """The input, if there is only one."""
        return self.core.inputs[0] if len(self.groups) == 1 and len(self.core.inputs) == 1 else None

    @property
    def simple(self) -> bool:
        """Whether all inputs are joined inner, so that the block can be a group of another one."""
        return len(self.groups) == 1 and not self.where

    @property
    def conditions(self) -> tuple[exp.Expr, ...]:
        """All conditions."""
        return (*(one for group in self.groups for one in group.on), *self.where)


def single(occurrence: Occurrence) -> Block:
    """Return the block of one input."""
    return Block((Group(JoinKind.INNER, (occurrence,)),))


def merged(left: Block, right: Block) -> Block:
    """Return the inner join of two blocks without a condition, with the outputs of the left one. Raises Invalid."""
    core = Group(JoinKind.INNER, (*left.core.inputs, *right.core.inputs), (*left.core.on, *right.core.on))
    return _checked(Block((core, *left.groups[1:], *right.groups[1:]), (*left.where, *right.where), left.outputs))


def _checked(block: Block) -> Block:
    counts = [len(group.inputs) for group in block.groups]
    if sum(counts) > INPUTS_MAX or max(counts) > INNER_MAX:
        raise Invalid(
            f"a stage of the view joins more than {INPUTS_MAX} relations, or more than {INNER_MAX} by inner joins, each"
            " as often as it is read: create a materialized view of some of them first"
        )
    return block


def filtered(block: Block, condition: exp.Expr) -> Block:
    """Return the block with a condition in addition."""
    parts = list(conjuncts(condition))
    for one in (*parts, *(common for part in parts for common in common_conjuncts(part))):
        block = _with(block, one)
    return block


def _with(block: Block, condition: exp.Expr) -> Block:
    reads = aliases_of(condition)
    for at, group in enumerate(block.groups):
        if group.kind is JoinKind.LEFT and reads & group.aliases and rejects_nulls(condition, group.aliases):
            return _with(_inner(block, at), condition)
    padded = {alias for group in block.groups if group.kind is JoinKind.LEFT for alias in group.aliases}
    if reads & padded:
        return replace(block, where=(*block.where, condition))
    core = replace(block.core, on=(*block.core.on, condition))
    return replace(block, groups=(core, *block.groups[1:]))


def _inner(block: Block, at: int) -> Block:
    """Return the block in which a LEFT group has become a part of the core."""
    group = block.groups[at]
    core = replace(block.core, inputs=(*block.core.inputs, *group.inputs))
    block = _checked(replace(block, groups=(core, *block.groups[1:at], *block.groups[at + 1 :])))
    for condition in group.on:
        block = _with(block, condition)
    return block


def attached(block: Block, kind: JoinKind, group: Block, conditions: Iterable[exp.Expr]) -> Block:
    """Return the block with a simple block as a further group. Raises Invalid."""
    assert group.simple
    on = (*group.core.on, *(one for condition in conditions for one in conjuncts(condition)))
    return _checked(replace(block, groups=(*block.groups, Group(kind, group.core.inputs, on))))


def chained(block: Block, right: Block, condition: exp.Expr) -> Block | None:
    """Return `block LEFT JOIN (right with its own LEFT JOINs)` as one chain of LEFT JOINs, or None.

    That is the same if every LEFT JOIN of `right` finds nothing where the core of `right` is missing.
    """
    core, further = right.core, right.groups[1:]
    if right.where or any(group.kind is not JoinKind.LEFT for group in further):
        return None
    if aliases_of(condition) & right.aliases - core.aliases:
        return None
    if not all(any(rejects_nulls(one, core.aliases) for one in group.on) for group in further):
        return None
    block = attached(block, JoinKind.LEFT, Block((core,)), [condition])
    return _checked(replace(block, groups=(*block.groups, *further)))


def padded(block: Block, value: exp.Expr) -> exp.Expr | None:
    """Return an output of a block as the right side of a LEFT JOIN gives it, or None if that cannot be expressed."""
    core = block.core
    if is_null_with(value, core.aliases):
        return value
    for one in core.inputs:
        name = next((name for name in sorted(one.shape.not_null)), None)
        if name is not None:
            there = exp.Not(this=exp.Is(this=column(one.alias, name), expression=exp.Null()))
            return exp.Case(ifs=[exp.If(this=there, true=value.copy())])
    return None


def renamed(block: Block, aliases: Mapping[str, str]) -> Block:
    """Return the block with other aliases."""
    groups = tuple(
        replace(
            group,
            inputs=tuple(replace(one, alias=aliases.get(one.alias, one.alias)) for one in group.inputs),
            on=tuple(realiased(one, aliases) for one in group.on),
        )
        for group in block.groups
    )
    return Block(
        groups,
        tuple(realiased(one, aliases) for one in block.where),
        tuple(replace(one, value=realiased(one.value, aliases)) for one in block.outputs),
    )


def foreign(block: Block) -> frozenset[str]:
    """Return the aliases that the block reads but does not join: those of an outer query."""
    own = {one.alias for group in block.groups for one in group.inputs}
    read = [*block.conditions, *(one.value for one in block.outputs)]
    return frozenset(alias for one in read for alias in aliases_of(one)) - own


def is_true(node: exp.Expr) -> bool:
    """Whether a condition is the constant TRUE."""
    inner = bare(node)
    return isinstance(inner, exp.Boolean) and bool(inner.this)


_ARITHMETIC = (exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Cast)


def never_null(value: exp.Expr, inputs: Sequence[Occurrence]) -> bool:
    """Whether an expression is arithmetic over columns of inputs that are joined inner, and has no NULL."""
    match value:
        case exp.Literal() | exp.Boolean() | exp.DataType():
            return True
        case exp.Column():
            alias, name = named(value)
            return any(one.alias == alias and name in one.shape.not_null for one in inputs)
        case exp.Case():
            values = [one.args["true"] for one in value.args["ifs"]]
            otherwise = value.args.get("default")
            return otherwise is not None and all(never_null(one, inputs) for one in (*values, otherwise))
        case _ if isinstance(value, _ARITHMETIC):
            parts = [part for part in value.args.values() if isinstance(part, exp.Expr)]
            return all(never_null(one, inputs) for one in parts)
        case _:
            return False
