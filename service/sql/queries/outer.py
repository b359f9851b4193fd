"""Keep a block as a hidden relation of its own, and make a FULL JOIN of two blocks.

A FULL JOIN is a UNION ALL: the left join, and the rows of the right side without a match.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from service.protocol.stage import JoinKind
from service.sql.queries.blocks import Block, Output, attached, padded, renamed
from service.sql.queries.nodes import built, column, columns_of, conjuncts, printed, realiased, rewritten
from service.sql.queries.relations import union
from service.sql.queries.scope import Names

if TYPE_CHECKING:
    from service.sql.queries.planner import Planner

_PRESENT = "present"


def kept(planner: "Planner", block: Block, names: Names, condition: exp.Expr) -> tuple[Block, Names, exp.Expr]:
    """Return a block that reads a hidden relation with all columns of `names`, the new names, and the new condition.

    The relation has a constant column, which tells a row from the padding of an outer join.
    """
    outputs: dict[str, Output] = {printed(one.value): one for one in names.values}
    here = {one.alias for one in block.visible}
    for at in columns_of(condition):
        if at[0] in here:
            outputs.setdefault(printed(column(*at)), Output(at[1], column(*at)))
    listed = (*outputs.values(), Output(_PRESENT, built("1::smallint")))
    pending = planner.made.stored(replace(block, outputs=listed))
    reading = planner.made.reading(pending)
    values: Mapping[str, exp.Expr] = {text: new.value for text, new in zip(outputs, reading.outputs, strict=False)}
    changed = names.changed(lambda value: values[printed(value)])
    return replace(reading, outputs=()), changed, replaced(condition, values)


def replaced(node: exp.Expr, values: Mapping[str, exp.Expr]) -> exp.Expr:
    """Return an expression in which the printed parts of `values` are replaced."""

    def replace_part(part: exp.Expr) -> exp.Expr | None:
        found = values.get(printed(part))
        return None if found is None else found.copy()

    return rewritten(node, replace_part)


def full_join(
    planner: "Planner", left: tuple[Block, Names], right: tuple[Block, Names], condition: exp.Expr
) -> tuple[Block, Names, Names]:
    """Return the block of a FULL JOIN, which reads a hidden relation, and the names of both sides."""
    sides: list[tuple[Block, Names]] = []
    for block, names in (left, right):
        fits = block.simple and all(padded(block, one.value) is not None for one in names.values)
        kept_block, kept_names, condition = (
            (block, names, condition) if fits else kept(planner, block, names, condition)
        )
        sides.append((kept_block, kept_names))
    (first, first_names), (second, second_names) = sides
    matched = attached(first, JoinKind.LEFT, second, conjuncts(condition))
    # The second branch reads the left side twice: rows without a match, padded with a row that never is.
    other = {one.alias: planner.made.occurrence(one.shape).alias for one in first.core.inputs}
    never = {one.alias: planner.made.occurrence(one.shape).alias for one in first.core.inputs}
    unmatched = attached(
        second, JoinKind.ANTI, renamed(first, other), [realiased(one, other) for one in conjuncts(condition)]
    )
    unmatched = attached(unmatched, JoinKind.LEFT, renamed(first, never), [exp.Boolean(this=False)])
    values = {printed(one.value): one for one in (*first_names.values, *second_names.values)}
    mine = {printed(one.value) for one in first_names.values}
    rows: list[list[Output]] = [[], []]
    for text, one in values.items():
        pad = padded(first if text in mine else second, one.value)
        assert pad is not None
        rows[0].append(one if text in mine else replace(one, value=pad))
        rows[1].append(replace(one, value=realiased(pad, never)) if text in mine else one)
    return _union(
        planner,
        [replace(matched, outputs=tuple(rows[0])), replace(unmatched, outputs=tuple(rows[1]))],
        list(values),
        (first_names, second_names),
    )


def _union(
    planner: "Planner", blocks: list[Block], texts: list[str], names: tuple[Names, Names]
) -> tuple[Block, Names, Names]:
    pending = planner.made.add(union(blocks))
    reading = planner.made.reading(pending)
    values = {text: one.value for text, one in zip(texts, reading.outputs, strict=True)}
    left, right = (each.changed(lambda value: values[printed(value)]) for each in names)
    return replace(reading, outputs=()), left, right
