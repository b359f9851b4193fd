"""Finish a draft: describe the columns of which the types are wanted, then make the stage and its relation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from service.domain.errors import Invalid
from service.protocol.columns import Column, ColumnType, TypeName
from service.protocol.ids import RelationId
from service.protocol.quoting import quoted
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Aggregate, Join, Partition, Stage, Value
from service.sql.queries.drafts import CALLS, Draft, Grouping, Planned
from service.sql.queries.measures import Measures
from service.sql.queries.nodes import built, own_column, printed, substituted, within
from service.sql.queries.scales import Scales
from service.sql.queries.spark import with_spark
from service.sql.statements.tables import UNBOUND


def description(draft: Draft, relations: Mapping[RelationId, Relation]) -> str:
    """Return a SELECT over typed NULLs whose columns have the types that `finished` needs. It reads no table.

    Postgres must not know that they are NULL: it would say the type of what is left of a COALESCE.
    """
    if draft.partition is not None:
        part = _columns(relations[draft.joins[0].inputs[0].relation])
        return f'with "part" as materialized (select {part}) {draft.partition.sql}'
    if draft.grouping is not None:
        return _described(draft, draft.grouping, relations)
    branches = draft.branches or ((draft.joins, draft.rows),)
    # Not a UNION ALL, which finds the types of two branches before it looks at a third one.
    inputs = _inputs([join for joins, _ in branches for join in joins], relations)
    values = ", ".join(f"({_list(value.sql for value in rows)})" for _, rows in branches)
    return f'select "v".* from {inputs} cross join lateral (values {values}) "v"'


def finished(draft: Draft, types: Sequence[str], relations: Mapping[RelationId, Relation]) -> Planned:
    """Return the stage and the relation of a draft. `types` has those of the description. Raises Invalid."""
    try:
        return _finished(draft, types, relations)
    except RecursionError:
        raise Invalid("the query is nested too deeply") from None


def _finished(draft: Draft, types: Sequence[str], relations: Mapping[RelationId, Relation]) -> Planned:
    if draft.grouping is not None:
        return _finished_aggregate(draft, draft.grouping, types, relations)
    kinds = {name: _type(draft, name, text) for name, text in zip(draft.columns, types, strict=True)}
    rows = tuple(
        _value(draft, value.name, _cast(draft.trees[value.sql], kinds[value.name]))
        if draft.branches or _differs(kinds[value.name], types[at])
        else value
        for at, value in enumerate(draft.rows)
    )
    draft = replace(draft, distribution=_distribution(draft, relations))
    partition = draft.partition
    if partition is not None:
        partition = partition.model_copy(update={"sql": draft.trees.text(_query(draft, partition, kinds, types))})
    stage = Stage(joins=draft.joins, where=draft.where, rows=rows, partition=partition, distribution=draft.distribution)
    return _planned(draft, stage, kinds, relations)


def _query(draft: Draft, partition: Partition, kinds: Mapping[str, ColumnType], types: Sequence[str]) -> exp.Expr:
    """Return the query of a partition, whose values have the types of the columns in which they are stored."""
    seen = draft.seen if any(kind.looks_differ for kind in kinds.values()) else None
    query = draft.trees[seen or partition.sql]
    if not any(_differs(kinds[name], text) for name, text in zip(draft.columns, types, strict=True)):
        return query
    return within(query, "p", [(name, _cast(own_column(name), kind)) for name, kind in kinds.items()])


def _planned(
    draft: Draft, stage: Stage, kinds: Mapping[str, ColumnType], relations: Mapping[RelationId, Relation]
) -> Planned:
    relation = _relation(draft, kinds, relations)
    return Planned(with_spark(stage, draft.trees, relations, relation), relation)


def _distribution(draft: Draft, relations: Mapping[RelationId, Relation]) -> tuple[str, ...]:
    """Return the columns that decide the vnode of a row: the whole key, by which the row may be looked up.

    Without any it is the vnode of the driver's row, whose key is then the same. Rows of a lake have none.
    """
    driver = relations[draft.joins[0].inputs[0].relation]
    names = tuple(part.name for part in draft.key)
    apart = driver.lake is not None or len(names) > len(driver.key)
    return draft.distribution or (names if apart else ())


def _described(draft: Draft, grouping: Grouping, relations: Mapping[RelationId, Relation]) -> str:
    inputs = _inputs(draft.joins, relations)
    arguments = [printed(call.argument) for call in grouping.calls if call.argument is not None]
    keys = ", ".join(f"{row.sql} as {quoted(row.name)}" for row in draft.rows)
    calls = ", ".join(f'{printed(call.node)} as "call_{at}"' for at, call in enumerate(grouping.calls)) or "count(*)"
    columns = [
        *(f'"k".{quoted(row.name)}' for row in draft.rows),
        *(f'"a"."argument_{at}"' for at in range(len(arguments))),
        *(f'"{CALLS}"."call_{at}"' for at in range(len(grouping.calls))),
        *(printed(one.node) for one in grouping.results),
    ]
    given = _list(f'{text} as "argument_{at}"' for at, text in enumerate(arguments)) or "1"
    return (
        f'select {_list(columns)} from (select {keys} from {inputs}) "k" cross join (select {given} from {inputs}) "a" '
        f'cross join (select {calls} from {inputs}) "{CALLS}"'
    )


def _finished_aggregate(
    draft: Draft, grouping: Grouping, types: Sequence[str], relations: Mapping[RelationId, Relation]
) -> Planned:
    left = iter(types)
    keys = {row.name: _key_type(draft, row.name, next(left)) for row in draft.rows}
    arguments = [None if call.argument is None else next(left) for call in grouping.calls]
    called = [next(left) for _ in grouping.calls]
    results = {one.name: (one, next(left)) for one in grouping.results}
    measures = Measures(*_exact(draft, relations))
    values = {
        (CALLS, f"call_{at}"): measures.result(call, argument, kind)
        for at, (call, argument, kind) in enumerate(zip(grouping.calls, arguments, called, strict=True))
    }
    looks = {
        row.name: measures.look(row.name, draft.trees[row.sql], keys[row.name], grouping.seen) for row in draft.rows
    }
    kinds: dict[str, ColumnType] = {name: keys[name] for name in draft.columns if name in keys}
    kinds |= {name: _type(draft, name, text) for name, (_, text) in results.items()}
    rows = [*_keys(draft, grouping, keys, types), *(_value(draft, *one) for one in measures.rows.items())]
    stage = Stage(
        joins=draft.joins,
        where=draft.where,
        rows=tuple(rows),
        aggregate=Aggregate(
            keys=tuple(keys),
            measures=tuple(measures.rows),
            results=tuple(
                _value(draft, name, _cast(substituted(one.node, values), kinds[name], text))
                for name, (one, text) in results.items()
            ),
            always=grouping.always,
            looks=tuple(_value(draft, name, node) for name, node in looks.items() if node is not None),
        ),
        distribution=draft.distribution,
    )
    kinds = {**{name: kinds[name] for name in draft.columns}, **measures.types}
    not_null = draft.not_null | measures.types.keys()
    return _planned(replace(draft, not_null=not_null), stage, kinds, relations)


def _keys(draft: Draft, grouping: Grouping, kinds: Mapping[str, ColumnType], types: Sequence[str]) -> Iterator[Value]:
    """Yield the keys of a group in the types in which they are stored."""
    for row, text in zip(draft.rows, types, strict=False):
        kind = kinds[row.name]
        null = built(f"cast(null as {kind})")
        node = null if row.name in grouping.padded else _cast(draft.trees[row.sql], kind, text)
        yield _value(draft, row.name, node)


def _exact(draft: Draft, relations: Mapping[RelationId, Relation]) -> tuple[frozenset[tuple[str, str]], Scales]:
    """Return the columns of the inputs, and the scale of those whose type has only finite values."""
    whole = {TypeName.SMALLINT, TypeName.INTEGER, TypeName.BIGINT, TypeName.BOOLEAN, TypeName.DATE}
    types = {
        (one.alias, column.name): column.type
        for join in draft.joins
        for one in join.inputs
        for column in relations[one.relation].columns
    }
    scales = {name: 0 if kind.name in whole else kind.scale for name, kind in types.items()}
    return frozenset(types), {name: scale for name, scale in scales.items() if scale is not None}


def _value(draft: Draft, name: str, node: exp.Expr) -> Value:
    return Value(name=name, sql=draft.trees.text(node))


def _cast(node: exp.Expr, kind: ColumnType, described: str | None = None) -> exp.Expr:
    """Return a value in the type in which it is stored, where Postgres has `described` another one."""
    same = described is not None and not _differs(kind, described)
    return node if same else built(f"cast({{0}} as {kind})", node)


def _differs(kind: ColumnType, described: str) -> bool:
    try:
        return ColumnType.parse(described) != kind
    except ValueError:
        return True


def _relation(draft: Draft, kinds: Mapping[str, ColumnType], relations: Mapping[RelationId, Relation]) -> Relation:
    for part in draft.key:
        _refuse_key(draft, part.name, kinds[part.name])
    columns = tuple(
        Column(name=name, type=kind, nullable=name not in draft.not_null, hidden=at >= draft.visible)
        for at, (name, kind) in enumerate(kinds.items())
    )
    counts = [relations[one.relation].vnode_count for join in draft.joins for one in join.inputs]
    return Relation(
        id=UNBOUND if draft.final else RelationId(-(draft.target + 1)),
        name=f"stage_{draft.target}",
        kind=RelationKind.MATERIALIZED_VIEW,
        columns=columns,
        key=draft.key,
        # A row that has the vnode of its driver's row is looked up among as many vnodes.
        vnode_count=max(counts) if draft.distribution else counts[0],
    )


def _key_type(draft: Draft, name: str, text: str) -> ColumnType:
    kind = _type(draft, name, text)
    _refuse_key(draft, name, kind)
    return kind


def _refuse_key(draft: Draft, name: str, kind: ColumnType) -> None:
    reason = kind.why_not_a_key
    if reason is not None:
        message = f"a view cannot group by or distinguish rows by a value of type {kind}: {reason}. Use its text (cast)"
        raise Invalid(message, position=draft.places.get(name))


_PLAIN = {"character varying": "text", "character": "text", '"char"': "text", "name": "text", "unknown": "text"}


def stored_type(text: str) -> ColumnType:
    """Return the type that a column has whose values Postgres describes so. Raises ValueError."""
    scalar, _, array = text.partition("[")
    bare, _, limits = scalar.partition("(")
    _, _, behind = limits.partition(")")
    plain = f"{bare.strip()}{behind}".strip()
    plain = _PLAIN.get(plain, plain)
    wanted = scalar if plain == "numeric" else plain
    if array:
        wanted += "[]"
    try:
        return ColumnType.parse(wanted)
    except ValueError:
        if plain == "numeric":
            return ColumnType.parse("numeric[]" if array else "numeric")
        hint = ": cast it to jsonb" if plain == "json" else ""
        raise ValueError(f"has type {text}, which is not supported{hint}") from None


def _type(draft: Draft, name: str, text: str) -> ColumnType:
    try:
        return stored_type(text)
    except ValueError as error:
        raise Invalid(f'column "{name}" {error}', position=draft.places.get(name)) from None


def _inputs(joins: Sequence[Join], relations: Mapping[RelationId, Relation]) -> str:
    # Branches may read one input.
    inputs = {one.alias: one.relation for join in joins for one in join.inputs}
    return " cross join ".join(
        f"(select {_columns(relations[one])} offset 0) {quoted(alias)}" for alias, one in inputs.items()
    )


def _columns(relation: Relation) -> str:
    return ", ".join(f"null::{one.type} as {quoted(one.name)}" for one in relation.columns)


def _list(texts: "Iterator[str] | Sequence[str]") -> str:
    return ", ".join(texts)
