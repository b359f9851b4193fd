"""Put what a block over a UNION ALL computes and filters into the branches, where it means the same there.

A branch can have other types than the union, and with other types `a / 2` has another value. A column that is passed on
gets the union's type where it is stored. One that is computed with gets it here, or the union is stored before.
"""

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from service.protocol.columns import ColumnType, TypeName
from service.sql.expressions.typed import BOOLEAN, DOUBLE, INTEGERS, TEXT, number
from service.sql.queries.blocks import Block, filtered
from service.sql.queries.nodes import bare, built, columns_of, named, substituted


def over_branches(block: Block, alias: str, branches: Sequence[Block]) -> tuple[Block, ...] | None:
    """Return the branches of a union with what a block over it computes and filters. None if a type is not known."""
    computed = (one.value for one in block.outputs if not isinstance(bare(one.value), exp.Column))
    read = {name for value in (*block.conditions, *computed) for at, name in columns_of(value) if at == alias}
    for place, output in enumerate(branches[0].outputs):
        if output.name in read and len(branches) > 1:
            common = _common([_type(branch, place) for branch in branches])
            if common is None:
                return None
            branches = [_cast(branch, place, common) for branch in branches]
    return tuple(_over_branch(block, alias, branch) for branch in branches)


def _over_branch(block: Block, alias: str, branch: Block) -> Block:
    values = {(alias, output.name): output.value for output in branch.outputs}
    for condition in block.conditions:
        branch = filtered(branch, substituted(condition, values))
    outputs = tuple(replace(output, value=substituted(output.value, values)) for output in block.outputs)
    return replace(branch, outputs=outputs)


def _type(branch: Block, place: int) -> ColumnType | None:
    """Return the type of an output as far as it is known without Postgres."""
    match bare(branch.outputs[place].value):
        case exp.Column() as node:
            alias, name = named(node)
            return next((one.shape.types.get(name) for one in branch.visible if one.alias == alias), None)
        case exp.Cast() as node:
            try:
                return ColumnType.parse(node.args["to"].sql("postgres"))
            except ValueError:
                return None
        case exp.Literal() as node:
            return TEXT if node.is_string else number(node.name).type
        case exp.Boolean():
            return BOOLEAN
        case _:
            return None


def _common(kinds: Sequence[ColumnType | None]) -> ColumnType | None:
    known = [kind for kind in kinds if kind is not None]
    names = {kind.name for kind in known}
    if len(known) < len(kinds) or (len(set(known)) > 1 and any(kind.array for kind in known)):
        return None
    if names <= {*INTEGERS}:
        return max(known, key=lambda kind: INTEGERS.index(kind.name))
    if len(set(known)) == 1:
        return known[0]
    if names <= {*INTEGERS, TypeName.NUMERIC}:
        return ColumnType(TypeName.NUMERIC)
    return DOUBLE if names == {TypeName.REAL, TypeName.DOUBLE} else None


def _cast(branch: Block, place: int, to: ColumnType) -> Block:
    if _type(branch, place) == to:
        return branch
    outputs = list(branch.outputs)
    value = built(f"cast({{0}} as {to})", outputs[place].value)
    outputs[place] = replace(outputs[place], value=value)
    return replace(branch, outputs=tuple(outputs))
