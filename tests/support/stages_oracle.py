"""Evaluate the drafts of a query with plain SQL in one Postgres, as an oracle of the planner.

Every stage is one full SELECT over ordinary tables. Nothing is maintained: a draft is right if its result is that of
the user's query.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import RelationId
from service.protocol.quoting import quoted
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Condition, JoinKind, Stage
from service.sql.queries.finishing import description, finished
from service.sql.queries.plan import plan_query
from service.sql.text.tokens import tokenize
from service.sql.text.tree import Tree, parse_tree
from tests.support.trees import check_trees


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The view of a query as its stages give it: its relation, its table, and the stages in order."""

    relation: Relation
    table: str
    stages: tuple[Stage, ...]


def tree(text: str) -> Tree:
    return parse_tree(text, tokenize(text))


def relations_of(connection: psycopg.Connection, names: Sequence[str]) -> dict[str, Relation]:
    """Return tables of the database as relations. A column called `_row_id` is hidden."""
    return {name: _relation(connection, name, RelationId(number + 1)) for number, name in enumerate(names)}


def _relation(connection: psycopg.Connection, name: str, number: RelationId) -> Relation:
    columns = connection.execute(
        "select attname, format_type(atttypid, atttypmod), attnotnull from pg_attribute "
        "where attrelid = %s::regclass and attnum > 0 order by attnum",
        [quoted(name)],
    ).fetchall()
    key = connection.execute(
        "select attname from pg_index, unnest(indkey) with ordinality k(attnum, n) join pg_attribute using (attnum) "
        "where indrelid = %s::regclass and indisprimary and attrelid = indrelid order by n",
        [quoted(name)],
    ).fetchall()
    return Relation(
        id=number,
        name=name,
        kind=RelationKind.TABLE,
        columns=tuple(
            Column(name=label, type=ColumnType.parse(kind), nullable=not there, hidden=label == "_row_id")
            for label, kind, there in columns
        ),
        key=tuple(KeyColumn(name=label) for (label,) in key),
    )


def evaluate(
    connection: psycopg.Connection,
    text: str,
    relations: Mapping[str, Relation],
    views: Mapping[str, str] | None = None,
) -> Evaluated:
    """Plan a query and evaluate its stages, each into a temporary table."""
    described = run(connection, f"select * from ({text}) q limit 0").description or []
    names = [column.name for column in described]
    drafts = plan_query(tree(text), relations, {name: tree(sql) for name, sql in (views or {}).items()}, names)
    known: dict[RelationId, Relation] = {one.id: one for one in relations.values()}
    tables = {one.id: quoted(one.name) for one in relations.values()}
    stages: list[Stage] = []
    relation: Relation | None = None
    connection.execute("drop schema if exists stages cascade; create schema stages")
    for draft in drafts:
        planned = finished(draft, types_of(connection, description(draft, known)), known)
        check_trees(draft.trees)
        relation = planned.relation
        known[relation.id] = relation
        stages.append(planned.stage)
        fill(connection, [(planned.stage, relation)], tables)
    assert relation is not None
    return Evaluated(relation, tables[relation.id], tuple(stages))


def fill(
    connection: psycopg.Connection, stages: Sequence[tuple[Stage, Relation]], tables: dict[RelationId, str]
) -> None:
    """Evaluate stages, each with the relation that it writes, into tables, which are added to `tables`."""
    for stage, relation in stages:
        if relation.id not in tables:
            tables[relation.id] = f"stages.t_{len(tables)}"
            columns = ", ".join(f"{quoted(one.name)} {one.type}" for one in relation.columns)
            run(connection, f"create table {tables[relation.id]} ({columns})")
        _fill(connection, stage, relation, tables)


def types_of(connection: psycopg.Connection, text: str) -> list[str]:
    """Return the types of a query's columns."""
    run(connection, f"create temp view described as select * from ({text}) q({_labels(connection, text)})")
    rows = connection.execute(
        "select format_type(atttypid, atttypmod) from pg_attribute "
        "where attrelid = 'described'::regclass and attnum > 0 order by attnum"
    ).fetchall()
    connection.execute("drop view described")
    return [kind for (kind,) in rows]


def _labels(connection: psycopg.Connection, text: str) -> str:
    count = len(run(connection, f"select * from ({text}) q limit 0").description or [])
    return ", ".join(f"c{at}" for at in range(count))


def _fill(connection: psycopg.Connection, stage: Stage, relation: Relation, tables: Mapping[RelationId, str]) -> None:
    columns = ", ".join(quoted(one.name) for one in relation.columns)
    target = tables[relation.id]
    if stage.partition is not None:
        one = stage.driver
        where = _all(stage.where)
        run(
            connection,
            f"with part as (select * from {tables[one.relation]} {quoted(one.alias)}{where}) "
            f"insert into {target} ({columns}) select {columns} from ({stage.partition.sql}) s",
        )
        return
    rows = f"select {', '.join(f'{one.sql} as {quoted(one.name)}' for one in stage.rows)} from {_joined(stage, tables)}"
    if stage.aggregate is not None:
        rows = _aggregated(stage, rows, relation)
    run(connection, f"insert into {target} ({columns}) select {columns} from ({rows}) s")


def _aggregated(stage: Stage, rows: str, relation: Relation) -> str:
    aggregate = stage.aggregate
    assert aggregate is not None
    keys = [quoted(name) for name in aggregate.keys]
    sums = [
        f"coalesce(sum({quoted(name)}), 0)::{relation.column(name).type} as {quoted(name)}"
        for name in aggregate.measures
    ]
    if aggregate.always:
        constants = {one.name: one.sql for one in stage.rows}
        shown = [f"{constants[name]} as {quoted(name)}" for name in aggregate.keys]
        grouped = f"select {', '.join([*shown, *sums])} from ({rows}) r"
    else:
        grouped = f"select {', '.join([*keys, *sums])} from ({rows}) r group by {', '.join(keys)}"
    looks = {one.name: one.sql for one in aggregate.looks}
    shown = [f"{looks.get(name, quoted(name))} as {quoted(name)}" for name in aggregate.state]
    grouped = f"select {', '.join(shown)} from ({grouped}) s"
    results = [f"{one.sql} as {quoted(one.name)}" for one in aggregate.results]
    return f"select {', '.join(['*', *results])} from ({grouped}) g"


def _joined(stage: Stage, tables: Mapping[RelationId, str]) -> str:
    conditions = [*stage.joins[0].on]
    text = " cross join ".join(f"{tables[one.relation]} {quoted(one.alias)}" for one in stage.joins[0].inputs)
    ending: list[str] = []
    for join in stage.joins[1:]:
        inputs = " cross join ".join(f"{tables[one.relation]} {quoted(one.alias)}" for one in join.inputs)
        on = " and ".join(one.sql for one in join.on) or "true"
        if join.kind is JoinKind.LEFT:
            inner = f"({inputs})" if len(join.inputs) > 1 else inputs
            text = f"{text} left join {inner} on {on}"
        else:
            word = "exists" if join.kind is JoinKind.SEMI else "not exists"
            ending.append(f"{word} (select from {inputs} where {on})")
    every = [*(one.sql for one in (*conditions, *stage.where)), *ending]
    return f"{text} where {' and '.join(every)}" if every else text


def _all(conditions: Sequence[Condition]) -> str:
    return f" where {' and '.join(one.sql for one in conditions)}" if conditions else ""


def run(connection: psycopg.Connection, text: str) -> psycopg.Cursor:
    """Run a text of ours."""
    return connection.execute(text.encode())
