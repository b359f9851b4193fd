"""Choose the driver of a block and the key of its rows.

An input is *determined* if its whole key equals values of inputs that are determined already. A row of the driver then
meets at most one of its rows, and the key of the block need not contain its key. The driver is the input from which the
most others are determined.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from service.protocol.columns import ColumnType, TypeName
from service.protocol.stage import JoinKind
from service.sql.queries.blocks import Block, Group, Occurrence
from service.sql.queries.nodes import bare, columns_of, is_quantified, named

_FLOATS: Final = frozenset({TypeName.REAL, TypeName.DOUBLE})
_ROUNDED: Final = frozenset({TypeName.BIGINT, TypeName.NUMERIC})
"""Types of which several values equal the same float."""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of an input that is a part of a block's key."""

    alias: str
    column: str
    descending: bool


def keyed(block: Block) -> tuple[Block, tuple[KeyPart, ...]]:
    """Return the block with its driver first, and the key of its rows, which begins with the driver's key."""
    core = block.core
    best = min(range(len(core.inputs)), key=lambda at: _rank(block, at))
    inputs = (core.inputs[best], *core.inputs[:best], *core.inputs[best + 1 :])
    ordered = replace(block, groups=(replace(core, inputs=inputs), *block.groups[1:]))
    return ordered, _Closure(ordered).key


def _rank(block: Block, at: int) -> tuple[int, int, bool, int]:
    core = block.core
    inputs = (core.inputs[at], *core.inputs[:at], *core.inputs[at + 1 :])
    closure = _Closure(replace(block, groups=(replace(core, inputs=inputs),)))
    return closure.widened, len(closure.key), core.inputs[at].shape.pending is None, at


class _Closure:
    """Columns and inputs that a block's key determines. `widened` counts the inputs that had to add to the key."""

    def __init__(self, block: Block) -> None:
        self._types: dict[tuple[str, str], ColumnType] = {
            (one.alias, name): kind for one in block.visible for name, kind in one.shape.types.items()
        }
        self._known: set[tuple[str, str]] = set()
        self._whole: set[str] = set()
        self._parts: list[KeyPart] = []
        self.widened = 0
        self._add(block.core.inputs[0])
        inner = tuple(one for one in block.where if isinstance(bare(one), exp.EQ))
        self._join(replace(block.core, on=(*block.core.on, *inner)))
        for group in block.groups[1:]:
            if group.kind is JoinKind.LEFT and not any(_is_false(one) for one in group.on):
                self._join(group)

    @property
    def key(self) -> tuple[KeyPart, ...]:
        """The key, in order."""
        return tuple(self._parts)

    def _join(self, group: Group) -> None:
        pending = [one for one in group.inputs if one.alias not in self._whole]
        equalities = list(_equalities(group.on))
        while pending:
            self._spread(equalities)
            found = [one for one in pending if self._determined(one)]
            for one in found:
                self._settle(one)
            if not found:
                self.widened += 1
                self._add(min(pending, key=lambda one: len(self._missing(one))))
            pending = [one for one in pending if one.alias not in self._whole]
        self._spread(equalities)

    def _spread(self, equalities: Sequence[tuple[exp.Column, exp.Expr]]) -> None:
        grown = True
        while grown:
            grown = False
            for target, value in equalities:
                at = named(target)
                if at in self._known or not set(columns_of(value)) <= self._known or self._rounds(at, value):
                    continue
                self._known.add(at)
                grown = True

    def _rounds(self, at: tuple[str, str], value: exp.Expr) -> bool:
        """Whether several values of a column can equal one value of the other side."""
        mine = self._types.get(at)
        inner = bare(value)
        other = self._types.get(named(inner)) if isinstance(inner, exp.Column) else None
        exact = mine is None or mine.name not in _ROUNDED
        return not exact and other is not None and other.name in _FLOATS

    def _missing(self, one: Occurrence) -> list[KeyPart]:
        parts = [KeyPart(one.alias, part.name, part.descending) for part in one.shape.key]
        return [part for part in parts if (part.alias, part.column) not in self._known]

    def _determined(self, one: Occurrence) -> bool:
        return one.shape.single or not self._missing(one)

    def _add(self, one: Occurrence) -> None:
        self._parts += self._missing(one)
        self._settle(one)

    def _settle(self, one: Occurrence) -> None:
        self._whole.add(one.alias)
        self._known |= {(one.alias, name) for name in (*one.shape.columns, *(part.name for part in one.shape.key))}


def _equalities(conditions: Sequence[exp.Expr]) -> Iterator[tuple[exp.Column, exp.Expr]]:
    for condition in conditions:
        node = bare(condition)
        if isinstance(node, exp.EQ):
            for target, value in ((node.this, node.expression), (node.expression, node.this)):
                inner = bare(target)
                if isinstance(inner, exp.Column) and not is_quantified(value):
                    yield inner, value


def _is_false(node: exp.Expr) -> bool:
    inner = bare(node)
    return isinstance(inner, exp.Boolean) and not inner.this


def at_most_one(block: Block, outer: frozenset[str]) -> bool:
    """Whether a block has at most one row for given values of columns of `outer`."""
    assert block.simple
    stand_in = [one for one in block.core.inputs if one.alias not in outer]
    return _Pinned(block, outer).holds(stand_in)


class _Pinned(_Closure):
    """The closure of constants and of the columns of an outer query."""

    def __init__(self, block: Block, outer: frozenset[str]) -> None:
        self._types = {(one.alias, name): kind for one in block.visible for name, kind in one.shape.types.items()}
        self._known = {at for one in block.core.on for at in columns_of(one) if at[0] in outer}
        self._whole = set()
        self._parts = []
        self.widened = 0
        self._join(block.core)

    def holds(self, inputs: Sequence[Occurrence]) -> bool:
        """Whether no input had to add to the key."""
        return not self.widened and all(one.alias in self._whole for one in inputs)
