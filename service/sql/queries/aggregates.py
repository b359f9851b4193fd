"""Plan GROUP BY, aggregates and DISTINCT.

An aggregate of sums is one stage over the block below it. Any other aggregate is computed again for each group that
changes, from one stored input.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import KeyColumn
from service.sql.expressions.allowed import called_name
from service.sql.queries.allowed import LINEAR, is_aggregate
from service.sql.queries.blocks import Block, Output, filtered, foreign, merged
from service.sql.queries.nodes import bare, built, column, columns_of, named, operand, printed, rewritten
from service.sql.queries.parts import LEAST, PART, first_of, ordered_within, stored_input
from service.sql.queries.relations import (
    BRANCH,
    NAMELESS,
    ONE,
    Grouped,
    Parted,
    Pending,
    is_count,
    shown_by,
    uniquely_named,
)
from service.sql.queries.scope import Scope
from service.sql.queries.selected import Selected
from service.sql.queries.subqueries import split_correlated
from service.sql.text.labels import label
from service.sql.text.tree import given, identifier

if TYPE_CHECKING:
    from service.sql.queries.planner import Planner

SETS_MAX: Final = 32


def is_grouped(select: exp.Select) -> bool:
    """Whether a SELECT has groups: GROUP BY, HAVING or an aggregate of its own."""
    if select.args.get("group") or select.args.get("having"):
        return True
    order = select.args.get("order")
    nodes = [*select.expressions, *([order] if order is not None else [])]
    return any(is_aggregate(one) and one.find_ancestor(exp.Query) is select for node in nodes for one in node.walk())


def grouped(planner: "Planner", select: exp.Select, selected: Selected, scope: Scope) -> Selected:
    """Return the SELECT over the relation of its groups."""
    block, sets = _sets(planner, select, selected, scope)
    linked: list[tuple[exp.Expr, exp.Expr]] = []
    if select.args.get("group") is None and foreign(block):
        # The subquery has one row for each row of the outer query: a group of the columns that link the two.
        own = {one.alias for group in block.groups for one in group.inputs}
        linked, block = split_correlated(block, [], own, scope.tree.position(select))
        sets = [[mine for mine, _ in linked]]
    made = _Groups(block, sets, {one.alias for one in selected.after.visible})
    change = made.changed
    outputs = tuple(replace(one, value=change(one.value)) for one in selected.outputs)
    having = [change(one) for one in selected.having]
    order = tuple(exp.Ordered(**{**one.args, "this": change(one.this)}) for one in selected.order)
    keys = tuple(change(one) for one in selected.distinct_on)
    after = _changed_block(selected.after, change)
    pending = made.pending(planner, scope.tree.position(select))
    reading = planner.made.reading(pending)
    place = {name: one.value for name, one in zip(made.names, reading.outputs, strict=True)}

    def read(value: exp.Expr) -> exp.Expr:
        return made.read(value, place)

    result = merged(replace(reading, outputs=()), _changed_block(after, read))
    if linked and (having or select.args.get("distinct")):
        message = "HAVING and DISTINCT in a subquery that names the outer query are not supported in a view"
        raise Invalid(message, position=scope.tree.position(select))
    for condition in having:
        result = filtered(result, read(condition))
    for mine, theirs in linked:
        result = filtered(result, exp.EQ(this=operand(read(change(mine))), expression=operand(theirs)))
    if linked:
        counts = {printed(place[name]) for name in made.counts}
        result = replace(result, total=True)
        outputs = tuple(replace(one, value=_counted(read(one.value), counts)) for one in outputs)
    return Selected(
        result,
        tuple(replace(one, value=read(one.value)) for one in outputs),
        order=tuple(exp.Ordered(**{**one.args, "this": read(one.this)}) for one in order),
        distinct_on=tuple(read(one) for one in keys),
    )


def _counted(value: exp.Expr, counts: set[str]) -> exp.Expr:
    """Return an expression in which a count over no row is 0."""

    def replaced(node: exp.Expr) -> exp.Expr | None:
        if isinstance(node, exp.Column) and printed(node) in counts:
            return exp.Anonymous(this="coalesce", expressions=[node.copy(), built("0")])
        return None

    return rewritten(value, replaced)


def distinct(planner: "Planner", block: Block) -> Block:
    """Return the block of the distinct rows of a block's outputs."""
    keys = tuple(Output(f"k{at}", one.value, one.place) for at, one in enumerate(block.outputs))
    outputs = tuple(replace(one, value=column(NAMELESS, f"k{at}")) for at, one in enumerate(block.outputs))
    body = Grouped(replace(block, outputs=()), keys, (), uniquely_named(outputs), (tuple(range(len(keys))),))
    reading = planner.made.reading(planner.made.add(body))
    return replace(
        reading,
        outputs=tuple(
            replace(one, name=before.name, place=before.place)
            for one, before in zip(reading.outputs, block.outputs, strict=True)
        ),
    )


def _changed_block(block: Block, change: Callable[[exp.Expr], exp.Expr]) -> Block:
    """Return a block with `change` applied to its conditions."""
    groups = tuple(replace(group, on=tuple(change(one) for one in group.on)) for group in block.groups)
    return replace(block, groups=groups, where=tuple(change(one) for one in block.where))


def _sets(
    planner: "Planner", select: exp.Select, selected: Selected, scope: Scope
) -> tuple[Block, list[list[exp.Expr]]]:
    """Return the grouping sets, each a list of resolved expressions."""
    block = selected.block
    clause = select.args.get("group")
    if clause is None:
        return block, [[]]
    if clause.args.get("distinct") or clause.args.get("totals") or clause.args.get("all"):
        raise Invalid("GROUP BY ALL and DISTINCT are not supported in a view", position=scope.tree.position(clause))
    sets: list[list[exp.Expr]] = [[]]
    for node in clause.expressions:
        sets = [[*before, *more] for before in sets for more in _expanded(node)]
        if len(sets) > SETS_MAX:
            message = f"a GROUP BY has at most {SETS_MAX} grouping sets"
            raise Invalid(message, position=scope.tree.position(clause))
    resolved: list[list[exp.Expr]] = []
    written: dict[str, str] = {}
    for members in sets:
        found: dict[str, exp.Expr] = {}
        for node in members:
            block, value = _group_key(planner, block, node, selected, scope)
            text = printed(bare(value))
            found.setdefault(text, bare(value))
            if written.setdefault(text, _as_written(select, node)) != _as_written(select, node) and len(sets) > 1:
                message = (
                    "grouping sets with two columns that are one and the same below are not supported in a view: "
                    "group by one of them"
                )
                raise Invalid(message, position=scope.tree.position(node))
        resolved.append(list(found.values()))
    return block, resolved


def _as_written(select: exp.Select, node: exp.Expr) -> str:
    """Return the text of an item of GROUP BY, or of the output that it numbers. A column's is its name."""
    inner = bare(node)
    if isinstance(inner, exp.Literal) and inner.name.isdigit() and 0 < int(inner.name) <= len(select.expressions):
        inner = bare(select.expressions[int(inner.name) - 1].unalias())
    return identifier(inner.this) if isinstance(inner, exp.Column) else printed(inner)


def _expanded(node: exp.Expr) -> list[list[exp.Expr]]:
    """Return the grouping sets that one item of GROUP BY stands for."""
    match node:
        case exp.Tuple():
            return [list(node.expressions)]
        case exp.GroupingSets():
            return [each for one in node.expressions for each in _expanded(one)]
        case exp.Rollup():
            items = [_members(one) for one in node.expressions]
            return [[each for item in items[:length] for each in item] for length in range(len(items), -1, -1)]
        case exp.Cube():
            items = [_members(one) for one in node.expressions]
            chosen = (some for length in range(len(items), -1, -1) for some in combinations(items, length))
            return [[each for item in some for each in item] for some in chosen]
        case _:
            return [[node]]


def _members(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Tuple):
        return list(node.expressions)
    return [node]


def _group_key(
    planner: "Planner", block: Block, node: exp.Expr, selected: Selected, scope: Scope
) -> tuple[Block, exp.Expr]:
    """Resolve an item of GROUP BY: an output's number, a column of the FROM, an output's name, or an expression."""
    inner = bare(node)
    if isinstance(inner, exp.Literal) and not inner.args.get("is_string") and inner.name.isdigit():
        at = int(inner.name) - 1
        if not 0 <= at < len(selected.outputs):
            message = f"GROUP BY position {inner.name} is not in select list"
            raise Invalid(message, position=scope.tree.position(node))
        return block, selected.outputs[at].value
    if isinstance(inner, exp.Column) and given(inner) == frozenset({"this"}):
        name = identifier(inner.this)
        if all(one.name != name for one in scope.names.columns):
            found = next((one for one in selected.outputs if one.name == name), None)
            if found is not None:
                return block, found.value
    return planner.value(block, inner, scope)


class _Groups:
    """The keys and calls of a grouped query, which its expressions name after `changed`."""

    def __init__(self, block: Block, sets: Sequence[Sequence[exp.Expr]], after: set[str]) -> None:
        self._block, self._after = block, after
        self._keys: dict[str, exp.Expr] = {}
        for members in sets:
            for one in members:
                self._keys.setdefault(printed(one), one)
        self._sets = [[list(self._keys).index(printed(one)) for one in members] for members in sets]
        self._calls: dict[str, exp.Expr] = {}
        self._dependent: set[int] = set()

    @property
    def _branched(self) -> bool:
        return len(self._sets) > 1

    def changed(self, value: exp.Expr) -> exp.Expr:
        """Return an expression over keys and calls instead of the block's columns."""
        return rewritten(value, self._replaced)

    def _replaced(self, node: exp.Expr) -> exp.Expr | None:
        text = printed(bare(node))
        if text in self._keys:
            return self._key(list(self._keys).index(text))
        if is_aggregate(node):
            name = f"c{list(self._calls).index(text) if text in self._calls else len(self._calls)}"
            self._calls.setdefault(text, bare(node))
            return column(NAMELESS, name)
        if isinstance(node, exp.Anonymous) and called_name(node) == "grouping":
            return self._grouping(node)
        if isinstance(node, exp.Column) and named(node)[0] not in self._after and named(node)[0] in self._block.aliases:
            # Postgres accepts a column that is no key only if the keys determine it.
            self._dependent.add(len(self._keys))
            self._keys[text] = node
            return self._key(len(self._keys) - 1)
        return None

    @property
    def counts(self) -> list[str]:
        """The columns that count rows."""
        return [f"c{at}" for at, call in enumerate(self._calls.values()) if is_count(call)]

    def _key(self, at: int) -> exp.Expr:
        return column(NAMELESS, f"k{at}")

    def _grouping(self, node: exp.Anonymous) -> exp.Expr:
        """Return GROUPING(..) as a value of the branch: a bit for each argument that the set leaves out."""
        texts = list(self._keys)
        places = [texts.index(printed(bare(one))) for one in node.expressions]
        masks = [
            sum(1 << at for at, place in enumerate(reversed(places)) if place not in members) for members in self._sets
        ]
        if not self._branched:
            return built(str(masks[0]))
        whens = [
            exp.If(this=exp.EQ(this=column(NAMELESS, BRANCH), expression=built(str(at))), true=built(str(mask)))
            for at, mask in enumerate(masks)
        ]
        return exp.Case(ifs=whens)

    def read(self, value: exp.Expr, place: dict[str, exp.Expr]) -> exp.Expr:
        """Return an expression over the relation of the groups, whose columns `place` has."""

        def replaced(node: exp.Expr) -> exp.Expr | None:
            if isinstance(node, exp.Column) and named(node)[0] == NAMELESS:
                return place[named(node)[1]].copy()
            return None

        return rewritten(value, replaced)

    @property
    def names(self) -> list[str]:
        """The names of the branch, of all keys and of all calls, in the order of the relation's columns."""
        keys, calls = range(len(self._keys)), range(len(self._calls))
        return [*([BRANCH] if self._branched else []), *(f"k{at}" for at in keys), *(f"c{at}" for at in calls)]

    def pending(self, planner: "Planner", place: int) -> Pending:
        """Return the relation of the groups."""
        members = [sorted({*one, *self._dependent}) for one in self._sets]
        keys = tuple(Output(f"k{at}", value, place) for at, value in enumerate(self._keys.values()))
        calls = tuple((f"c{at}", call) for at, call in enumerate(self._calls.values()))
        values = [*([column(NAMELESS, BRANCH)] if self._branched else []), *self._keys.values(), *self._calls.values()]
        outputs = tuple(
            Output(_label(value, name), column(NAMELESS, name), place)
            for name, value in zip(self.names, values, strict=True)
        )
        outputs = uniquely_named(outputs)
        if all(_is_linear(call) for _, call in calls):
            body = Grouped(self._block, keys, calls, outputs, tuple(tuple(one) for one in members))
            return planner.made.add(body)
        if self._branched:
            message = (
                "GROUPING SETS, ROLLUP and CUBE with min, max, DISTINCT or another aggregate that is no sum are not "
                "supported in a view: write a UNION ALL of GROUP BYs"
            )
            raise Invalid(message, position=place)
        return _by_parts(planner, self._block, keys, calls, outputs)


def _label(value: exp.Expr, name: str) -> str:
    """Return a name for a stored key or call that tells what it is."""
    if isinstance(value, exp.Column):
        return named(value)[1]
    return label(value) or name


def _is_linear(call: exp.Expr) -> bool:
    inner = call.this if isinstance(call, exp.Filter) else call
    if not isinstance(inner, exp.Anonymous) or called_name(inner) not in LINEAR:
        return False
    return len(inner.expressions) <= 1 and not any(
        isinstance(one, exp.Distinct | exp.Order) for one in inner.expressions
    )


def _by_parts(
    planner: "Planner",
    block: Block,
    keys: Sequence[Output],
    calls: Sequence[tuple[str, exp.Expr]],
    outputs: tuple[Output, ...],
) -> Pending:
    """Return the relation of groups that are computed again as a whole."""
    source = stored_input(planner, block, [one.value for one in keys], [call for _, call in calls])
    columns = source.columns
    order = source.key
    shown = [Output(one.name, column(PART, name)) for one, name in zip(keys, columns, strict=True)]
    made = [Output(name, ordered_within(source.over_part(call), order)) for name, call in calls]
    seen = [
        *(replace(one, value=first_of(one.value, order)) for one in shown),
        *(replace(one, value=ordered_within(one.value, order, LEAST)) for one in made),
    ]
    if not keys:
        shown.append(Output(ONE, built("1::smallint")))
        seen.append(shown[0])
    query = built('SELECT 1 FROM "part"')
    if keys:
        query.set("group", exp.Group(expressions=[one.value for one in shown]))
    body = Parted(
        source=source.one,
        where=source.where,
        columns=tuple(dict.fromkeys(columns)),
        query=shown_by(query, [*shown, *made]),
        seen=shown_by(query, seen),
        reads=frozenset({*columns, *(name for one in made for alias, name in columns_of(one.value) if alias == PART)}),
        key=tuple(KeyColumn(name=one.name) for one in shown),
        outputs=outputs,
        single=not keys,
        not_null=frozenset({ONE, *(name for name, call in calls if is_count(call))})
        | {one.name for one, name in zip(keys, columns, strict=True) if name in source.one.shape.not_null},
    )
    return planner.made.add(body)
