"""Make drafts of the relations of a query: give them numbers, drop columns that nothing reads, and print their SQL."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp

from service.protocol.columns import KeyColumn
from service.protocol.ids import RelationId
from service.protocol.stage import Condition, Input, Join, JoinKind, Partition, Side, Value
from service.sql.queries.blocks import Block, Output, Shape, is_true, never_null
from service.sql.queries.drafts import CALLS, Call, Draft, Grouping, Result, Trees
from service.sql.queries.heads import first_rows
from service.sql.queries.keys import keyed
from service.sql.queries.nodes import (
    aliases_of,
    bare,
    built,
    column,
    columns_of,
    is_quantified,
    named,
    operand,
    own_column,
    printed,
    realiased,
    rejects_nulls,
    rewritten,
    within,
)
from service.sql.queries.relations import (
    BRANCH,
    NAMELESS,
    ONE,
    Grouped,
    Parted,
    Pending,
    Rows,
    labelled,
    not_null,
    union_slots,
)

_INNER: Final = "q"


def drafts_of(view: Pending, relations: Sequence[Pending]) -> tuple[Draft, ...]:
    """Return the drafts of a view's relation and of all relations that it needs, the view's last."""
    needed = [one for one in relations if one in _reachable(view) and one is not view]
    needed.append(view)
    for at in range(len(needed) - 2, -1, -1):
        _prune(needed[at], needed[at + 1 :])
    targets = {id(one): number for number, one in enumerate(needed)}
    return tuple(draft for one in needed for draft in _drafts(one, _Drafting(targets)))


@dataclass(frozen=True, slots=True)
class _Drafting:
    """The numbers of relations, and the trees of what is printed for one of them."""

    targets: Mapping[int, int]
    trees: Trees = field(default_factory=Trees)

    def text(self, node: exp.Expr) -> str:
        return self.trees.text(operand(node))

    def relation(self, shape: Shape) -> RelationId:
        return RelationId(shape.relation if shape.pending is None else -(self.targets[id(shape.pending)] + 1))


def _reachable(view: Pending) -> list[Pending]:
    found: list[Pending] = []
    left = [view]
    while left:
        one = left.pop()
        if one not in found:
            found.append(one)
            left += _inputs(one)
    return found


def _blocks(one: Pending) -> tuple[Block, ...]:
    match one.body:
        case Rows():
            return one.body.blocks
        case Grouped():
            return (one.body.block,)
        case Parted():
            return ()


def _inputs(one: Pending) -> Iterator[Pending]:
    inputs = [each for block in _blocks(one) for group in block.groups for each in group.inputs]
    if isinstance(one.body, Parted):
        inputs.append(one.body.source)
    for each in inputs:
        if each.shape.pending is not None:
            yield each.shape.pending


def _prune(one: Pending, readers: Sequence[Pending]) -> None:
    """Drop the columns of a relation that are no part of its key and that no reader names."""
    outputs, _, key = labelled(one.body)
    wanted = {part.name for part in key} | {name for reader in readers for name in _reads(reader, one)}
    if isinstance(one.body, Rows):
        places = [at for at, output in enumerate(outputs) if output.name in wanted]
        one.body = Rows(
            tuple(replace(block, outputs=tuple(block.outputs[at] for at in places)) for block in one.body.blocks)
        )
    else:
        one.body = replace(one.body, outputs=tuple(output for output in outputs if output.name in wanted))


def _reads(reader: Pending, one: Pending) -> Iterator[str]:
    body = reader.body
    if isinstance(body, Parted):
        if body.source.shape.pending is one:
            yield from body.reads
            yield from (name for condition in body.where for _, name in columns_of(condition))
        return
    for block in _blocks(reader):
        aliases = {each.alias for group in block.groups for each in group.inputs if each.shape.pending is one}
        read = [*block.conditions, *(output.value for output in block.outputs)]
        if isinstance(body, Grouped):
            read += [*(key.value for key in body.keys), *(call for _, call in body.calls)]
        yield from (name for value in read for alias, name in columns_of(value) if alias in aliases)


def _drafts(one: Pending, made: _Drafting) -> Iterator[Draft]:
    body, target = one.body, made.targets[id(one)]
    match body:
        case Rows() if len(body.blocks) == 1:
            yield _rows(body, made, target)
        case Rows():
            yield from _union(body, made, target)
        case Grouped():
            yield from _grouped(body, made, target)
        case Parted():
            yield _parted(body, made, target)


def _rows(body: Rows, made: _Drafting, target: int) -> Draft:
    block, _ = keyed(body.blocks[0])
    outputs, hidden, key = labelled(body)
    return Draft(
        target=target,
        joins=_joins(block, made),
        where=_conditions(made, block, block.where),
        rows=tuple(_value(made, one, block.core.inputs[0].alias) for one in (*outputs, *hidden)),
        columns=tuple(one.name for one in (*outputs, *hidden)),
        visible=len(outputs),
        key=key,
        distribution=(),
        not_null=not_null(body, (*outputs, *hidden)),
        trees=made.trees,
        places=_places(outputs),
    )


def _union(body: Rows, made: _Drafting, target: int) -> Iterator[Draft]:
    outputs, _, key = labelled(body)
    slots = union_slots(body)
    names = [one.name for one in outputs]
    rows: list[tuple[Value, ...]] = []
    for number, block in enumerate(body.blocks):
        filled = {name: value for name, at, value in slots if at == number}
        hidden = [Value(name=part.name, sql=made.text(filled.get(part.name, exp.Null()))) for part in key[1:]]
        visible = [
            Value(name=name, sql=made.text(output.value)) for name, output in zip(names, block.outputs, strict=True)
        ]
        rows.append((*visible, Value(name=BRANCH, sql=made.text(built(f"{number}::smallint"))), *hidden))
    blocks = [keyed(block)[0] for block in body.blocks]
    branches = tuple((_joins(block, made), values) for block, values in zip(blocks, rows, strict=True))
    for block, values in zip(blocks, rows, strict=True):
        yield Draft(
            target=target,
            joins=_joins(block, made),
            where=_conditions(made, block, block.where),
            rows=values,
            columns=tuple(value.name for value in values),
            visible=len(outputs),
            key=key,
            distribution=tuple(part.name for part in key),
            not_null=not_null(body, outputs),
            trees=made.trees,
            branches=branches,
            places=_places(outputs),
        )


def _grouped(body: Grouped, made: _Drafting, target: int) -> Iterator[Draft]:
    outputs, hidden, key = labelled(body)
    block, _ = keyed(body.block)
    names = _key_names(body, key)
    used = {name for output in outputs for _, name in columns_of(output.value)}
    calls = [(name, call) for name, call in body.calls if name in used]
    every = (*outputs, *hidden)
    results = tuple(_result(output, names, [name for name, _ in calls]) for output in every)
    stored = set(names.values())
    for number, members in enumerate(body.sets):
        rows = [Value(name=names[one.name], sql=made.text(one.value)) for one in body.keys]
        if body.branched:
            rows.insert(0, Value(name=names[BRANCH], sql=made.text(built(f"{number}::smallint"))))
        elif not body.keys:
            rows.append(Value(name=ONE, sql=made.text(built("1::smallint"))))
        yield Draft(
            target=target,
            joins=_joins(block, made),
            where=_conditions(made, block, block.where),
            rows=tuple(rows),
            columns=tuple(one.name for one in every),
            visible=len(outputs),
            key=key,
            distribution=tuple(part.name for part in key),
            not_null=not_null(body, every),
            trees=made.trees,
            grouping=Grouping(
                calls=tuple(_call(call, block) for _, call in calls),
                results=tuple(one for one in results if one.name not in stored),
                always=not members,
                padded=frozenset(names[one.name] for at, one in enumerate(body.keys) if at not in members),
                seen=body.seen,
            ),
            places=_places(outputs),
        )


def _key_names(body: Grouped, key: Sequence[KeyColumn]) -> dict[str, str]:
    """Return the columns in which the keys of an aggregate are stored, by the keys' own names."""
    own = [*([BRANCH] if body.branched else []), *(one.name for one in body.keys)] or [ONE]
    return {name: part.name for name, part in zip(own, key, strict=True)}


def _result(output: Output, names: dict[str, str], calls: Sequence[str]) -> Result:
    def replaced(node: exp.Expr) -> exp.Expr | None:
        if not isinstance(node, exp.Column):
            return None
        name = named(node)[1]
        return own_column(names[name]) if name in names else column(CALLS, f"call_{calls.index(name)}")

    return Result(output.name, rewritten(output.value, replaced))


def _call(node: exp.Expr, block: Block) -> Call:
    condition = node.expression.this if isinstance(node, exp.Filter) else None
    inner = node.this if isinstance(node, exp.Filter) else node
    assert isinstance(inner, exp.Anonymous)
    argument = inner.expressions[0] if inner.expressions else None
    return Call(
        function=inner.name.lower(),
        node=node,
        argument=None if isinstance(argument, exp.Star) else argument,
        filter=condition,
        sure=argument is not None and never_null(argument, block.core.inputs),
    )


def _parted(body: Parted, made: _Drafting, target: int) -> Draft:
    outputs, hidden, key = labelled(body)
    every = (*outputs, *hidden)
    shown = [(one.name, realiased(one.value, {NAMELESS: _INNER})) for one in every]
    having = [realiased(one, {NAMELESS: _INNER}) for one in body.having]

    def over(query: exp.Expr) -> str:
        """Print a query of the part with what is computed and filtered over its rows."""
        return made.trees.text(within(query, _INNER, shown, having))

    source = body.source
    return Draft(
        target=target,
        joins=(Join(kind=JoinKind.INNER, inputs=(Input(alias=source.alias, relation=made.relation(source.shape)),)),),
        where=tuple(_condition(made, one, (source.alias,)) for one in body.where),
        rows=(),
        columns=tuple(one.name for one in every),
        visible=len(outputs),
        key=key,
        distribution=tuple(part.name for part in key),
        not_null=not_null(body, every),
        trees=made.trees,
        partition=Partition(
            columns=body.columns,
            sql=over(body.query),
            order=body.order,
            first=first_rows(body.ranked, body.having) if body.ranked is not None else "",
        ),
        seen=None if body.seen is None else over(body.seen),
        places=_places(outputs),
    )


def _joins(block: Block, made: _Drafting) -> tuple[Join, ...]:
    """Return the groups of a block."""
    return tuple(
        Join(
            kind=group.kind,
            inputs=tuple(Input(alias=one.alias, relation=made.relation(one.shape)) for one in group.inputs),
            on=_conditions(made, block, group.on),
        )
        for group in block.groups
    )


def _conditions(made: _Drafting, block: Block, conditions: Sequence[exp.Expr]) -> tuple[Condition, ...]:
    order = tuple(one.alias for group in block.groups for one in group.inputs)
    texts: dict[str, Condition] = {}
    for one in conditions:
        if not is_true(one):
            condition = _condition(made, one, order)
            texts.setdefault(condition.sql, condition)
    return tuple(texts.values())


def _condition(made: _Drafting, node: exp.Expr, order: Sequence[str]) -> Condition:
    inner = bare(node)
    sides = None
    if isinstance(inner, exp.EQ) and not any(
        isinstance(bare(side), exp.Tuple) or is_quantified(side) for side in (inner.this, inner.expression)
    ):
        sides = (_side(inner.this, order), _side(inner.expression, order))
    inputs = _ordered(inner, order)
    rejects = tuple(one for one in inputs if rejects_nulls(inner, frozenset({one})))
    return Condition(sql=made.text(inner), inputs=inputs, equal=sides, rejects=rejects)


def _side(node: exp.Expr, order: Sequence[str]) -> Side:
    inner = bare(node)
    if isinstance(inner, exp.Column):
        alias, name = named(inner)
        return Side(sql=printed(inner), inputs=(alias,), alias=alias, column=name)
    return Side(sql=printed(operand(inner)), inputs=_ordered(inner, order))


def _ordered(node: exp.Expr, order: Sequence[str]) -> tuple[str, ...]:
    reads = aliases_of(node)
    return tuple(alias for alias in order if alias in reads)


def _value(made: _Drafting, output: Output, driver: str) -> Value:
    inner = bare(output.value)
    alias, name = named(inner) if isinstance(inner, exp.Column) else ("", "")
    return Value(name=output.name, sql=made.text(output.value), column=name if alias == driver else None)


def _places(outputs: Sequence[Output]) -> dict[str, int]:
    return {one.name: one.place for one in outputs}
