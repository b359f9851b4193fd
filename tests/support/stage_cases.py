"""Stages over three small tables, each with the SELECT that it maintains."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind, state_table
from service.protocol.stage import Aggregate, Condition, Input, Join, JoinKind, Partition, Side, Stage, Value
from tests.support.state_store import relation

SHAPE: Final = {"id": "bigint", "x": "bigint", "v": "bigint"}
TABLES: Final = {name: relation(place, name, SHAPE, "id") for place, name in enumerate(("a", "b", "c"), 1)}
_COLUMN: Final = re.compile(r"\b(i\d)\.(\w+)\b")


@dataclass(frozen=True)
class Case:
    """A stage, the columns of its target, and the query of its rows over the tables as they are."""

    name: str
    stage: Stage
    columns: Mapping[str, str]
    key: Sequence[str]
    query: str

    @property
    def target(self) -> Relation:
        """The relation that the stage writes."""
        return Relation(
            id=RelationId(9),
            name="target",
            kind=RelationKind.MATERIALIZED_VIEW,
            columns=tuple(Column(name=name, type=ColumnType.parse(kind)) for name, kind in self.columns.items()),
            key=tuple(KeyColumn(name=name) for name in self.key),
        )

    @property
    def wanted(self) -> str:
        """The query over the live versions."""
        text = self.query
        for name, table in TABLES.items():
            text = re.sub(
                rf"\b{name}!", f"(select * from {state_table(table.id)} where _to = 9223372036854775807)", text
            )
        return text


def sql(text: str) -> str:
    """Quote `i0.x` as the plan does."""
    return _COLUMN.sub(r'"\1"."\2"', text)


def on(text: str) -> Condition:
    """Return a condition; `i0.x = i1.id` is an equality."""
    found = [match.groups() for match in _COLUMN.finditer(text)]
    inputs = tuple(dict.fromkeys(alias for alias, _ in found))
    equal = None
    if re.fullmatch(r"i\d\.\w+ = i\d\.\w+", text):
        one, other = (
            Side(sql=f'"{alias}"."{column}"', inputs=(alias,), alias=alias, column=column) for alias, column in found
        )
        equal = (one, other)
    return Condition(sql=f"({sql(text)})", inputs=inputs, equal=equal)


def join(kind: JoinKind, names: str, *conditions: str) -> Join:
    """Return a group of inputs, such as `a i0, b i1`."""
    pairs = [pair.split() for pair in names.split(", ")]
    inputs = tuple(Input(alias=alias, relation=TABLES[name].id) for name, alias in pairs)
    return Join(kind=kind, inputs=inputs, on=tuple(map(on, conditions)))


def values(**texts: str) -> tuple[Value, ...]:
    """Return values by their column."""
    return tuple(Value(name=name, sql=sql(text)) for name, text in texts.items())


INNER, LEFT, SEMI, ANTI = JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI
_NUMBERS: Final[dict[str, str]] = dict.fromkeys(("id", "v", "w"), "bigint")
_TWO: Final[dict[str, str]] = dict.fromkeys(("id", "other", "v", "w"), "bigint")
_GROUP: Final = {"g": "bigint", "total": "numeric(38,0)", "n": "bigint", "s": "numeric(38,0)"}
_CALLS = Aggregate(keys=("g",), measures=("n", "s"), results=(Value(name="total", sql="10 / n + s"),))

CASES: Final = (
    Case(
        "each row of a with its b",
        Stage(joins=(join(INNER, "a i0, b i1", "i0.x = i1.id"),), rows=values(id="i0.id", v="i0.v", w="i1.v")),
        _NUMBERS,
        ["id"],
        "select i0.id, i0.v, i1.v from a! i0 join b! i1 on i0.x = i1.id",
    ),
    Case(
        "many to many, with itself and a condition",
        Stage(
            joins=(join(INNER, "a i0, a i1", "i0.x = i1.x", "i0.v < i1.v"),),
            rows=values(id="i0.id", other="i1.id", v="i0.v", w="i1.v"),
        ),
        _TWO,
        ["id", "other"],
        "select i0.id, i1.id, i0.v, i1.v from a! i0 join a! i1 on i0.x = i1.x and i0.v < i1.v",
    ),
    Case(
        "three inputs, filtered",
        Stage(
            joins=(join(INNER, "a i0, b i1, c i2", "i0.x = i1.x", "i1.v = i2.id", "i2.v > 1"),),
            where=(on("i0.v + i2.v > 3"),),
            rows=values(id="i0.id", other="i1.id", v="i0.v", w="i2.v"),
        ),
        _TWO,
        ["id", "other"],
        "select i0.id, i1.id, i0.v, i2.v from a! i0 join b! i1 on i0.x = i1.x join c! i2 on i1.v = i2.id and i2.v > 1"
        " where i0.v + i2.v > 3",
    ),
    Case(
        "a left join of many, with a condition on what is padded",
        Stage(
            joins=(join(INNER, "a i0"), join(LEFT, "b i1", "i0.x = i1.x")),
            where=(on("i1.v is null or i1.v > 1"),),
            rows=values(id="i0.id", other="i1.id", v="i0.v", w="i1.v"),
        ),
        _TWO,
        ["id", "other"],
        "select i0.id, i1.id, i0.v, i1.v from a! i0 left join b! i1 on i0.x = i1.x where i1.v is null or i1.v > 1",
    ),
    Case(
        "a chain of left joins, and a group of two",
        Stage(
            joins=(
                join(INNER, "a i0"),
                join(LEFT, "b i1", "i0.x = i1.id"),
                join(LEFT, "c i2, c i3", "i1.v = i2.id", "i2.x = i3.id"),
            ),
            rows=values(id="i0.id", v="i1.v", w="i3.v"),
        ),
        _NUMBERS,
        ["id"],
        "select i0.id, i1.v, i3.v from a! i0 left join b! i1 on i0.x = i1.id"
        " left join (c! i2 join c! i3 on i2.x = i3.id) on i1.v = i2.id",
    ),
    Case(
        "rows with a match, and without another",
        Stage(
            joins=(
                join(INNER, "a i0"),
                join(SEMI, "b i1, c i2", "i0.x = i1.x", "i1.v = i2.v"),
                join(ANTI, "c i3", "i0.v = i3.x", "i3.v <> i0.v"),
            ),
            rows=values(id="i0.id", v="i0.v", w="i0.x"),
        ),
        _NUMBERS,
        ["id"],
        "select id, v, x from a! i0 where exists (select from b! i1 join c! i2 on i1.v = i2.v where i0.x = i1.x)"
        " and not exists (select from c! i3 where i0.v = i3.x and i3.v <> i0.v)",
    ),
    Case(
        "groups of a join, with NULL",
        Stage(
            joins=(join(INNER, "a i0, b i1", "i0.x = i1.id"),),
            rows=values(g="i1.x", n="1", s="coalesce(i0.v, 0)"),
            aggregate=_CALLS,
            distribution=("g",),
        ),
        _GROUP,
        ["g"],
        "select i1.x, 10 / count(*) + sum(coalesce(i0.v, 0)), count(*), sum(coalesce(i0.v, 0))"
        " from a! i0 join b! i1 on i0.x = i1.id group by 1",
    ),
    Case(
        "one group, also of no rows",
        Stage(
            joins=(join(INNER, "a i0"), join(LEFT, "b i1", "i0.x = i1.x")),
            rows=values(g="1", n="1", s="coalesce(i1.v, 0)"),
            aggregate=_CALLS.model_copy(update={"always": True, "results": (Value(name="total", sql="n + s"),)}),
            distribution=("g",),
        ),
        _GROUP,
        ["g"],
        "select 1, count(*) + coalesce(sum(coalesce(i1.v, 0)), 0), count(*), coalesce(sum(coalesce(i1.v, 0)), 0)"
        " from a! i0 left join b! i1 on i0.x = i1.x",
    ),
    Case(
        "least and greatest by group",
        Stage(
            joins=(join(INNER, "a i0"),),
            where=(on("i0.v > 0"),),
            partition=Partition(columns=("x",), sql="select x as id, min(v) as v, max(v) as w from part group by x"),
            distribution=("id",),
        ),
        _NUMBERS,
        ["id"],
        "select x, min(v), max(v) from a! i0 where v > 0 group by x",
    ),
    Case(
        "the first two of each group",
        Stage(
            joins=(join(INNER, "a i0"),),
            partition=Partition(
                columns=("x",),
                sql="select id, v, x as w from (select *, row_number() over (order by v desc, id) as rank from part) q"
                " where rank <= 2",
            ),
            distribution=("id",),
        ),
        _NUMBERS,
        ["id"],
        "select id, v, x from (select *, row_number() over (partition by x order by v desc, id) as rank from a! i0) q"
        " where rank <= 2",
    ),
    Case(
        "the first three of all",
        Stage(
            joins=(join(INNER, "a i0"),),
            where=(on("i0.x is not null"),),
            partition=Partition(columns=(), sql="select id, v, x as w from part order by v desc, id limit 3"),
            distribution=("id",),
        ),
        _NUMBERS,
        ["id"],
        "select id, v, x from a! i0 where x is not null order by v desc, id limit 3",
    ),
    Case(
        "least and greatest of all, also of no rows",
        Stage(
            joins=(join(INNER, "a i0"),),
            partition=Partition(columns=(), sql="select 1::bigint as id, min(v) as v, max(v) as w from part"),
            distribution=("id",),
        ),
        _NUMBERS,
        ["id"],
        "select 1, min(v), max(v) from a! i0",
    ),
)
