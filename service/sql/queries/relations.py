"""Define the relations that stages write, while a query is being planned.

A relation is *pending* until its draft is made. A query that only filters and computes over a pending relation of its
own is absorbed by it, so that no further stage is needed.

The outputs of an aggregate and of a partition are expressions over columns of an input without a name (`NAMELESS`):
the keys and calls of the aggregate, the columns of the partition's query.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import ColumnType, KeyColumn
from service.protocol.relation import KEY_PREFIX
from service.sql.queries.blocks import Block, Occurrence, Output, Shape, foreign, never_null, single
from service.sql.queries.branches import over_branches
from service.sql.queries.keys import keyed
from service.sql.queries.nodes import aliases_of, bare, column, columns_of, named, selected, substituted
from service.sql.text.cursor import NAME_BYTES_MAX

NAMELESS: Final = ""
BRANCH: Final = f"{KEY_PREFIX}branch"
ONE: Final = f"{KEY_PREFIX}one"


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of a block, or of several (UNION ALL) with equally many outputs."""

    blocks: tuple[Block, ...]

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The columns that a query can name."""
        return self.blocks[0].outputs


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """The groups of a block. Each of `sets` has the numbers of the keys by which one grouping set groups.

    The keys of a group look as in its rows that satisfy `seen`.
    """

    block: Block
    keys: tuple[Output, ...]
    calls: tuple[tuple[str, exp.Expr], ...]
    outputs: tuple[Output, ...]
    sets: tuple[tuple[int, ...], ...]
    seen: exp.Expr | None = None

    @property
    def branched(self) -> bool:
        """Whether there is more than one grouping set."""
        return len(self.sets) > 1


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """An order of the rows of a part.

    `column` of the query is the place of a row in it. Without one, only the first row counts. With `ties`, rows of
    equal order have one place, as by `rank()`.
    """

    order: tuple[exp.Ordered, ...]
    column: str | None = None
    ties: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Parted:
    """The result of a query over each part of one input. `reads` are the input's columns that `query` names.

    `key` has columns of the query. `where` filters the input and `having` the query's rows. `order` are the columns by
    which the query sorts a part, as far as they have one direction. With `ranked`, a condition of `having` may leave
    only its first rows. `seen` is the query where equal values may look different, for results that do not depend on
    the order of rows.
    """

    source: Occurrence
    where: tuple[exp.Expr, ...]
    columns: tuple[str, ...]
    query: exp.Expr
    reads: frozenset[str]
    key: tuple[KeyColumn, ...]
    outputs: tuple[Output, ...]
    having: tuple[exp.Expr, ...] = ()
    single: bool = False
    not_null: frozenset[str] = frozenset()
    order: tuple[str, ...] = ()
    ranked: Ranked | None = None
    seen: exp.Expr | None = None


Body = Rows | Grouped | Parted


@dataclass(slots=True, eq=False)
class Pending:
    """A relation of the query. A `shared` one is read by several queries, and absorbs none of them."""

    body: Body
    shared: bool = False

    @property
    def always(self) -> bool:
        """Whether there is one row even if the input has none."""
        return isinstance(self.body, Grouped) and _single(self.body)

    @property
    def shape(self) -> Shape:
        """The columns that later stages read."""
        outputs, hidden, key = labelled(self.body)
        columns = tuple(one.name for one in outputs)
        return Shape(
            columns=columns,
            key=key,
            not_null=not_null(self.body, (*outputs, *hidden)),
            types=_types(self.body),
            single=_single(self.body),
            pending=self,
        )


def projects(one: Pending) -> bool:
    """Whether each row of a relation is computed from one row of another one."""
    return isinstance(one.body, Rows) and all(
        sum(len(group.inputs) for group in block.groups) == 1 for block in one.body.blocks
    )


def absorbed(block: Block) -> Pending | None:
    """Let the only input of a block take over its conditions and outputs, and return it. None if it cannot."""
    one = block.only
    pending = one.shape.pending if one is not None else None
    if one is None or pending is None or pending.shared or foreign(block):
        return None
    body = pending.body
    if isinstance(body, Rows):
        blocks = over_branches(block, one.alias, body.blocks)
        if blocks is None:
            return None
        pending.body = Rows(blocks)
        return pending
    values = {(one.alias, output.name): output.value for output in body.outputs}
    if any(at not in values for at in _read(block)) or (block.conditions and isinstance(body, Grouped)):
        return None
    outputs = tuple(replace(output, value=substituted(output.value, values)) for output in block.outputs)
    if isinstance(body, Grouped):
        pending.body = replace(body, outputs=outputs)
    else:
        conditions = tuple(substituted(condition, values) for condition in block.conditions)
        pending.body = replace(
            body, outputs=outputs, having=(*body.having, *conditions), single=body.single and not conditions
        )
    return pending


def _read(block: Block) -> Iterator[tuple[str, str]]:
    for one in (*block.conditions, *(output.value for output in block.outputs)):
        yield from columns_of(one)


def labelled(body: Body) -> tuple[tuple[Output, ...], tuple[Output, ...], tuple[KeyColumn, ...]]:
    """Return the visible columns, the hidden ones and the key of a relation."""
    match body:
        case Rows() if len(body.blocks) == 1:
            _, parts = keyed(body.blocks[0])
            return _labelled(body.outputs, [(column(part.alias, part.column), part.descending) for part in parts])
        case Rows():
            return body.outputs, (), _union_key(body)
        case Grouped():
            parts = [(column(NAMELESS, BRANCH), False)] if body.branched else []
            parts += [(column(NAMELESS, key.name), False) for key in body.keys]
            return _labelled(body.outputs, parts or [(column(NAMELESS, ONE), False)])
        case Parted():
            return _labelled(body.outputs, [(column(NAMELESS, part.name), part.descending) for part in body.key])


def _labelled(
    outputs: Sequence[Output], parts: Sequence[tuple[exp.Column, bool]]
) -> tuple[tuple[Output, ...], tuple[Output, ...], tuple[KeyColumn, ...]]:
    """Return the columns of a relation whose key has these parts. A part that is an output has its name."""
    passed: dict[tuple[str, str], str] = {}
    for output in outputs:
        inner = bare(output.value)
        if isinstance(inner, exp.Column):
            passed.setdefault(named(inner), output.name)
    taken = {output.name for output in outputs}
    hidden: list[Output] = []
    key: list[KeyColumn] = []
    for number, (part, descending) in enumerate(parts):
        label = passed.get(named(part))
        if label is None:
            label = _hidden_name(named(part)[1], number, taken)
            hidden.append(Output(label, part))
        taken.add(label)
        key.append(KeyColumn(name=label, descending=descending))
    return tuple(outputs), tuple(hidden), tuple(key)


def _hidden_name(name: str, number: int, taken: set[str]) -> str:
    label = name if name.startswith(KEY_PREFIX) else KEY_PREFIX + name.removeprefix("_")
    if label in taken or len(label.encode()) > NAME_BYTES_MAX:
        return f"{KEY_PREFIX}{number}"
    return label


def _union_key(body: Rows) -> tuple[KeyColumn, ...]:
    names = dict.fromkeys([BRANCH, *(name for name, _, _ in union_slots(body))])
    return tuple(KeyColumn(name=name) for name in names)


def union_slots(body: Rows) -> list[tuple[str, int, exp.Column]]:
    """Return the hidden key columns of a UNION ALL: the name, the branch that fills it, and its value there.

    Branches share a column if its type is known to be the same.
    """
    slots: list[tuple[str, int, exp.Column]] = []
    kinds: list[str | None] = []
    for number, block in enumerate(body.blocks):
        ordered, parts = keyed(block)
        types = {(one.alias, name): str(kind) for one in ordered.visible for name, kind in one.shape.types.items()}
        used: set[str] = set()
        for part in parts:
            kind = types.get((part.alias, part.column))
            fitting = (
                slots[at][0] for at, other in enumerate(kinds) if other == kind is not None and slots[at][0] not in used
            )
            name = next(fitting, f"{KEY_PREFIX}{len({name for name, _, _ in slots})}")
            used.add(name)
            slots.append((name, number, column(part.alias, part.column)))
            kinds.append(kind)
    return slots


def not_null(body: Body, outputs: Sequence[Output]) -> frozenset[str]:
    """Return the columns of a relation that surely have no NULL."""
    match body:
        case Rows() if len(body.blocks) == 1:
            return frozenset(one.name for one in outputs if never_null(one.value, body.blocks[0].core.inputs))
        case Rows():
            return frozenset(
                name
                for at, name in enumerate(one.name for one in body.outputs)
                if all(never_null(block.outputs[at].value, block.core.inputs) for block in body.blocks)
            ) | {BRANCH}
        case Grouped():
            keys = {key.name for key in body.keys if never_null(key.value, body.block.core.inputs)}
            sure = set() if body.branched else keys
            sure |= {name for name, call in body.calls if is_count(call)} | {BRANCH, ONE}
            return frozenset(one.name for one in outputs if _names(one.value) in sure)
        case Parted():
            sure = body.not_null
            return frozenset(one.name for one in outputs if _names(one.value) in sure)


def is_count(call: exp.Expr) -> bool:
    """Whether an aggregate is a count, which is 0 where others are NULL."""
    inner = call.this if isinstance(call, exp.Filter) else call
    return isinstance(inner, exp.Anonymous) and inner.name.lower() == "count"


def _names(value: exp.Expr) -> str | None:
    inner = bare(value)
    return named(inner)[1] if isinstance(inner, exp.Column) else None


def _types(body: Body) -> dict[str, ColumnType]:
    """Return the known types: those of columns that a block passes on unchanged."""
    if not isinstance(body, Rows) or len(body.blocks) != 1:
        return {}
    block = body.blocks[0]
    known = {(one.alias, name): kind for one in block.visible for name, kind in one.shape.types.items()}
    outputs, hidden, _ = labelled(body)
    read = {one.name: bare(one.value) for one in (*outputs, *hidden)}
    return {
        name: known[named(value)]
        for name, value in read.items()
        if isinstance(value, exp.Column) and named(value) in known
    }


def _single(body: Body) -> bool:
    match body:
        case Rows():
            return False
        case Grouped():
            return not body.keys and not body.branched
        case Parted():
            return body.single


def _outer(body: Body) -> bool:
    """Whether a relation reads an input that is not its own."""
    match body:
        case Rows():
            return any(foreign(block) for block in body.blocks)
        case Grouped():
            read = (*(one.value for one in body.keys), *(call for _, call in body.calls))
            own = body.block.aliases
            return bool(foreign(body.block)) or any(aliases_of(one) - own for one in read)
        case Parted():
            return any(aliases_of(one) - {body.source.alias} for one in body.where)


class Relations:
    """All relations of a query in the order of their making, and the aliases of their inputs."""

    def __init__(self) -> None:
        self.pending: list[Pending] = []
        self.place = 1
        """The position of the SELECT that is being planned."""
        self._aliases = 0

    def occurrence(self, shape: Shape) -> Occurrence:
        """Return a further input of some stage."""
        self._aliases += 1
        return Occurrence(f"i{self._aliases - 1}", shape)

    def add(self, body: Body) -> Pending:
        """Return a new relation. Raises Invalid if it would depend on an outer query."""
        if _outer(body):
            self.refuse_outer()
        made = Pending(body)
        self.pending.append(made)
        return made

    def refuse_outer(self) -> NoReturn:
        """Raise Invalid for a subquery that names the outer query where only one by itself is supported."""
        message = (
            "a subquery that names the outer query is not supported in a view here: link the two by equalities in its "
            "WHERE, or join it in FROM"
        )
        raise Invalid(message, position=self.place)

    def reading(self, pending: Pending) -> Block:
        """Return the block that reads a relation and gives its visible columns."""
        one = self.occurrence(pending.shape)
        outputs = tuple(Output(name, column(one.alias, name)) for name in one.shape.columns)
        return replace(single(one), outputs=outputs)

    def stored(self, block: Block) -> Pending:
        """Return the relation of a block's outputs. Their names are made unique."""
        block = replace(block, outputs=uniquely_named(block.outputs))
        return absorbed(block) or self.add(Rows((block,)))


def uniquely_named(outputs: Sequence[Output]) -> tuple[Output, ...]:
    """Return the outputs, each with a name of its own."""
    taken: set[str] = set()
    made: list[Output] = []
    for output in outputs:
        name, number = output.name, 1
        while name in taken or name.startswith("_"):
            number += 1
            name = f"{output.name.lstrip('_')[:50]}_{number}"
        taken.add(name)
        made.append(replace(output, name=name))
    return tuple(made)


def union(blocks: Sequence[Block]) -> Rows:
    """Return the UNION ALL of blocks with equally many outputs. The first block names the columns."""
    labels = [one.name for one in uniquely_named(blocks[0].outputs)]
    return Rows(
        tuple(
            replace(
                block,
                outputs=tuple(replace(one, name=name) for one, name in zip(block.outputs, labels, strict=True)),
            )
            for block in blocks
        )
    )


def shown_by(query: exp.Expr, outputs: Sequence[Output]) -> exp.Expr:
    """Return a SELECT with these outputs in place of its own."""
    return selected(query, ((one.name, one.value) for one in outputs))
