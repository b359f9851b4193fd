"""Define a stage: a query over versioned relations whose result is one relation again.

A view's query is a chain of stages. Each one is a select-project-join block with at most one operator. Its result is a
versioned relation, hidden unless the stage is the last. Every input can be read at the epoch before and at the
present one, so a stage needs no copy of what it joins.

A stage is data. `workers.state_store.stage_sql` prints it for the state store.

All SQL in here is the store's (Postgres's). A column of an input is written `"alias"."column"`, always quoted. Names of
functions and types come from the allow-list of `service.sql.queries`, and every text stands in parentheses where an
operator could follow.

Beside it may stand Spark SQL of the same meaning (`service.sql.queries.spark`), with which Spark computes the history.
Next: `service.protocol.stage_spark`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Final

from pydantic import BaseModel, ConfigDict, computed_field

from service.protocol.columns import ColumnType, TypeName
from service.protocol.ids import RelationId
from service.protocol.relation import Relation


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class JoinKind(StrEnum):
    """How a group of inputs joins the rows of the groups before it.

    `left` keeps a row without a match and pads it with NULLs. `semi` keeps a row with a match, and `anti` one without;
    neither adds columns.
    """

    INNER = "inner"
    LEFT = "left"
    SEMI = "semi"
    ANTI = "anti"


class Side(_Value):
    """One side of an equality. `column` is set where the side is a plain column of the input `alias`."""

    sql: str
    inputs: tuple[str, ...]
    alias: str | None = None
    column: str | None = None


class Engine(StrEnum):
    """An engine that computes rows: Spark, or the state store's own SQL."""

    SPARK = "spark"
    STORE = "store"


class EngineChoice(StrEnum):
    """The engine that the user chose. `auto` chooses by the number of rows (`service.protocol.stage_spark`)."""

    AUTO = "auto"
    SPARK = "spark"
    STORE = "store"


class Expression(_Value):
    """An expression in the store's SQL, and in Spark's unless only the store can compute it: `refusal` is why.

    `reads` are the columns of inputs that it names, by alias and name. None: planned before they were recorded.
    """

    sql: str
    spark: str | None = None
    refusal: str | None = None
    reads: tuple[tuple[str, str], ...] | None = None


class Condition(Expression):
    """A condition over the inputs named in `inputs`. `equal` has both sides of an equality (`=`) of two values.

    It surely does not hold in a row in which an input of `rejects` is padded with NULLs. None: planned before that was
    recorded. Then an equality is taken to reject all of its inputs.
    """

    inputs: tuple[str, ...]
    equal: tuple[Side, Side] | None = None
    rejects: tuple[str, ...] | None = None


class Input(_Value):
    """One occurrence of a relation. The alias is unique in the stage. A `single` one has one row at most.

    A negative id stands for a hidden relation of the same job until the job is stored: -1 is the first one.
    """

    alias: str
    relation: RelationId
    single: bool = False


class Join(_Value):
    """Inputs that are joined inner with each other on `on`, and how the whole group joins what precedes it.

    `on` may name inputs of earlier INNER and LEFT groups.
    """

    kind: JoinKind
    inputs: tuple[Input, ...]
    on: tuple[Condition, ...] = ()


class Value(Expression):
    """One column and the expression of its value.

    `column` is set where the value is that column of the stage's driver as it is. `long_scale` is the number of digits
    behind the point of a measure that has more digits than one sum of Spark takes
    (`service.protocol.stage_spark.MEASURE_DIGITS_MAX`).
    """

    name: str
    column: str | None = None
    long_scale: int | None = None


class Aggregate(_Value):
    """Groups whose state is a sum of contributions, so that a change adds to it and its reverse subtracts again.

    `keys` and `measures` are names of the stage's `rows`. A measure is an exact number that each row contributes, never
    NULL. The first measure counts rows: a group without rows has no row in the target. With `always` (no keys but
    constants) there is a row even so. Keys and sums of measures are columns of the target. `results` are its other
    columns, computed from those by name.

    Rows of a group may have keys that are equal and look different, as -0 and 0. `looks` are the keys as a group shows
    them, by name: as one of its rows has them. They are computed from keys and sums as well, before the results.
    """

    keys: tuple[str, ...]
    measures: tuple[str, ...]
    results: tuple[Value, ...] = ()
    always: bool = False
    looks: tuple[Value, ...] = ()

    @property
    def state(self) -> tuple[str, ...]:
        """The columns of the target that are a group's state: its keys and sums."""
        return (*self.keys, *self.measures)


class Partition(Expression):
    """A query that is computed again for each part of the input in which something changed.

    A part has equal values of `columns`, which are columns of the only input; without any the whole input is one part.
    `sql` is a SELECT over the relation `part`, which has the input's columns and only rows that satisfy the stage's
    `where`. It gives the target's columns by name, in order. A row of the target comes from one part only.

    `order` are columns of the input by which `sql` sorts a part, all in one direction, and an index has them too. If
    `sql` depends on the first rows of a part only, `first` is the ORDER BY and the limit that give them, over `part`:
    they are read from the index then, and the others are not.

    `spark` is a query over the rows of any number of parts, with the columns of an input by their names in Spark
    (`service.protocol.stage_spark.spark_column`).
    """

    columns: tuple[str, ...]
    order: tuple[str, ...] = ()
    first: str = ""


class Stage(_Value):
    """One stage. The first group of `joins` is INNER, and its first input is the driver, whose history is paged.

    `where` is evaluated after all joins. `rows` are the values of each combination: the target's columns, or the keys
    and the measures of `aggregate`. With `partition` there is one input, and `rows` are empty.

    `distribution` names the target's columns whose values decide the vnode of a row: its key, so that a row is found by
    its key alone. Without any, a row has the vnode of its driver's row, whose key and number of vnodes the target has.
    """

    joins: tuple[Join, ...]
    where: tuple[Condition, ...] = ()
    rows: tuple[Value, ...] = ()
    aggregate: Aggregate | None = None
    partition: Partition | None = None
    distribution: tuple[str, ...] = ()
    engine: EngineChoice = EngineChoice.AUTO

    @property
    def inputs(self) -> tuple[Input, ...]:
        """All inputs, the driver first."""
        return tuple(one for join in self.joins for one in join.inputs)

    @property
    def relations(self) -> tuple[RelationId, ...]:
        """The relations that it reads, each once, the driver's first."""
        return tuple(dict.fromkeys(one.relation for one in self.inputs))

    @property
    def driver(self) -> Input:
        """The input whose history is paged."""
        return self.joins[0].inputs[0]

    @property
    def is_whole(self) -> bool:
        """Whether its only part is the whole input, also one without rows."""
        return self.partition is not None and not self.partition.columns

    @property
    def is_alone(self) -> bool:
        """Whether a changed row of its input concerns no other row of it."""
        return self.partition is None and len(self.inputs) == 1

    @computed_field
    @property
    def is_projection(self) -> bool:
        """Whether each of its rows is computed from one row of its only input: a projection and a filter."""
        return self.is_alone and self.aggregate is None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All conditions."""
        return (*chain.from_iterable(join.on for join in self.joins), *self.where)

    def with_ids(self, hidden: Mapping[RelationId, RelationId]) -> "Stage":
        """Return the stage with the ids of its job's hidden relations."""
        joins = [
            join.model_copy(
                update={
                    "inputs": tuple(
                        one.model_copy(update={"relation": hidden.get(one.relation, one.relation)})
                        for one in join.inputs
                    )
                }
            )
            for join in self.joins
        ]
        return self.model_copy(update={"joins": tuple(joins)})


@dataclass(frozen=True, slots=True)
class LookupIndex:
    """An index of a stored relation, by which a stage or a user's SELECT finds rows.

    A stage's has the columns by which it looks up rows, in order of their names, and then those of `part_order`. A
    user's has them as written, with the `descending` ones among them, and `included` columns beside them. A `hashed`
    index has one column, and takes values of any length.
    """

    relation: RelationId
    columns: tuple[str, ...]
    hashed: bool = False
    descending: tuple[str, ...] = ()
    included: tuple[str, ...] = ()

    def serves(self, lookup: "LookupIndex") -> bool:
        """Whether a stage can look up rows by this index in place of the `lookup` that it asks for."""
        if self.relation != lookup.relation or self.hashed != lookup.hashed:
            return False
        # Columns that are not in order of their names are those of a part and then an order of its rows.
        same = sorted(self.columns) == sorted(lookup.columns) and list(lookup.columns) == sorted(lookup.columns)
        return same or self.columns == lookup.columns


_OF_ANY_LENGTH: Final = frozenset({TypeName.TEXT, TypeName.BYTEA, TypeName.JSONB})


def lookup_index(relation: Relation, columns: Iterable[str]) -> LookupIndex:
    """Return the index for a lookup by some columns.

    Postgres refuses a row with a long value in an ordered index, and a view must not make the INSERTs of others fail
    (I13). Columns of any length are therefore left out, or the first one is hashed if there are no others.
    """
    return _index(relation, sorted(set(columns)), relation.id)


def user_index(index: Relation, on: RelationId) -> LookupIndex:
    """Return the stored index for one that a user created. Columns of any length are treated as in `lookup_index`."""
    parts = {part.name: part.descending for part in index.key}
    found = _index(index, list(parts), on)
    if found.hashed:
        return found
    beside = [one.name for one in index.columns if one.name not in parts and not is_long(one.type)]
    descending = tuple(one for one in found.columns if parts[one])
    return replace(found, descending=descending, included=tuple(beside))


def _index(relation: Relation, names: Sequence[str], on: RelationId) -> LookupIndex:
    short = tuple(name for name in names if not is_long(relation.column(name).type))
    return LookupIndex(on, short or tuple(names[:1]), hashed=not short)


def is_long(kind: ColumnType) -> bool:
    """Whether a value of the type can be longer than an ordered index takes."""
    unbounded = kind.name is TypeName.NUMERIC and kind.precision is None
    return kind.array or unbounded or kind.name in _OF_ANY_LENGTH


def part_order(relation: Relation, partition: Partition) -> tuple[str, ...]:
    """Return the columns that order the rows of a part in its index: those of the query, then the key.

    The order is total. It is empty if an index cannot have it, because a column's values can be of any length.
    """
    key = tuple(part.name for part in relation.key)
    for order in ((*partition.order, *key), key):
        if not any(is_long(relation.column(name).type) for name in (*partition.columns, *order)):
            return tuple(name for name in dict.fromkeys(order) if name not in partition.columns)
    return ()


def lookups(stage: Stage, relations: Mapping[RelationId, Relation]) -> frozenset[LookupIndex]:
    """Return the indexes that a stage needs besides the storage order of its inputs.

    A row is looked up by the columns that conditions equate with values of one other input. If they cover the whole
    key with equal types, the storage order serves, because the vnode is computed from the values. An input that no
    condition equates with another one is looked up by the columns that conditions equate with constants.
    """
    if any(relations[one.relation].lake is not None for one in stage.inputs):
        # Spark computes it, and reads whole what it looks up.
        return frozenset()
    if stage.partition is not None:
        relation, columns = relations[stage.driver.relation], stage.partition.columns
        order = () if stage.is_whole and not stage.partition.order else part_order(relation, stage.partition)
        if order:
            return frozenset({LookupIndex(relation.id, (*sorted(columns), *order))})
        return frozenset({lookup_index(relation, columns)} if columns else ())
    of = {one.alias: relations[one.relation] for one in stage.inputs}
    equalities = Equalities(stage)
    found = {
        lookup_index(of[alias], columns)
        for alias in of
        for other in of
        if other != alias and (columns := {column for column, _ in equalities.with_inputs(alias, {other})})
        if not equalities.by_key(of, alias, {other})
    }
    alone = (alias for alias in of if len(of) > 1 and not any(equalities.with_inputs(alias, of.keys() - {alias})))
    found |= {lookup_index(of[alias], columns) for alias in alone if (columns := set(equalities.with_constants(alias)))}
    return frozenset(found)


class Equalities:
    """Say with what the conditions of a stage equate the columns of its inputs."""

    def __init__(self, stage: Stage) -> None:
        self._of: dict[str, list[tuple[str, Side]]] = {}
        self.read: dict[str, set[str]] = {}
        """For each input those with whose values its columns are equated."""
        for condition in stage.conditions:
            if condition.equal is not None:
                one, other = condition.equal
                for mine, its in ((one, other), (other, one)):
                    if mine.alias is not None and mine.column is not None:
                        self._of.setdefault(mine.alias, []).append((mine.column, its))
                        self.read.setdefault(mine.alias, set()).update(its.inputs)

    def with_constants(self, alias: str) -> Iterator[str]:
        """Yield the columns of an input that conditions equate with constants."""
        return (column for column, other in self._of.get(alias, ()) if not other.inputs)

    def with_inputs(self, alias: str, known: AbstractSet[str]) -> Iterator[tuple[str, Side]]:
        """Yield each column of an input that a condition equates with a value of `known` inputs, and that value."""
        for column, other in self._of.get(alias, ()):
            if other.inputs and known >= set(other.inputs):
                yield column, other

    def by_key(self, of: Mapping[str, Relation], alias: str, known: AbstractSet[str]) -> Mapping[str, Side] | None:
        """Return the value of each key column if a row of `alias` is found by its key from `known` inputs, or None.

        Both sides of each equality are columns of one type, so that equal values have one vnode.
        """
        relation = of[alias]
        values = {
            column: side
            for column, side in self.with_inputs(alias, known)
            if side.alias is not None
            and side.column is not None
            and of[side.alias].column(side.column).type == relation.column(column).type
        }
        keys = [part.name for part in relation.key]
        return {name: values[name] for name in keys} if all(name in values for name in keys) else None
