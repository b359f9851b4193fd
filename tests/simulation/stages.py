"""Views of stages: chains that join, group and choose, in words that the stores in memory understand.

A stage is evaluated plainly, over the rows that its inputs hold: the worker compares what it gives before and after,
and the checker asks what a relation has to hold.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from service.domain.order import Order
from service.ports.records import THE_RELATION, hidden_id
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Aggregate, Condition, Input, Join, JoinKind, Partition, Side, Stage, Value
from tests.support.fake_state_store import placed
from tests.support.model import Key, Row
from workers.backfill.stages import BoundStage

Rows = Mapping[Key, Row]
States = Mapping[Any, Rows]
"""The rows of each relation by its id, and of each input that is still being read, as far as it was, by its alias."""
Item = tuple[Key, Row]
Combination = dict[str, Item | None]
"""A row of each input by its alias, None where it is padded."""
Placed = Callable[[Key], int]
"""Gives the vnode of a row of the driver."""

_NUMBER: Final = ColumnType.parse("bigint")
_PAIRED: Final = '("i0"."v" * 100 + "i1"."v")'
_PADDED: Final = '("i0"."v" * 100 + coalesce("i1"."v", 99))'
_FOLDED: Final = '("i0"."v" % 5)'
_SUMMED: Final = "n * 1000 + s"
_FIRST: Final = "select * from part order by 2, 1 limit 1"
_TOP: Final = 'select "v", "_k0" from part order by "n" desc, "_k0" limit 2'


# The meaning of the texts.


def _padded(first: Any, second: Any) -> Any:
    return first * 100 + (99 if second is None else second)


_VALUES: Final[Mapping[str, Callable[[Callable[[str, str], Any]], Any]]] = {
    "1": lambda _: 1,
    _PAIRED: lambda of: of("i0", "v") * 100 + of("i1", "v"),
    _PADDED: lambda of: _padded(of("i0", "v"), of("i1", "v")),
    _FOLDED: lambda of: of("i0", "v") % 5,
}
_RESULTS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {_SUMMED: lambda of: of["n"] * 1000 + of["s"]}


def _ranked(key: Key) -> tuple[Any, ...]:
    return tuple((value is None, value or 0) for value in key)


def _first(rows: Rows) -> dict[Key, Row]:
    least = min(rows, key=_ranked, default=None)
    return {} if least is None else {least: rows[least][:1]}


def _top(rows: Rows) -> dict[Key, Row]:
    # A row of groups is (v, n, s).
    chosen = sorted(rows, key=lambda key: (-rows[key][1], _ranked(key)))[:2]
    return {key: rows[key][:1] for key in chosen}


_PARTS: Final[Mapping[str, Callable[[Rows], dict[Key, Row]]]] = {_FIRST: _first, _TOP: _top}


def _places(relation: Relation) -> dict[str, tuple[int, int]]:
    """Return of each column whether it is one of the key or of the row (0 or 1), and its place there."""
    key, rest = _names(relation)
    return {name: (side, place) for side, names in enumerate((key, rest)) for place, name in enumerate(names)}


@lru_cache(maxsize=1024)
def _plain(sql: str) -> tuple[str, str] | None:
    """Return the alias and the name of a column that stands alone."""
    parts = sql.split('"')
    alone = len(parts) == 5 and not (parts[0] or parts[4])
    return (parts[1], parts[3]) if alone else None


@dataclass(frozen=True, slots=True)
class Meaning:
    """The rows that a stage gives."""

    bound: BoundStage
    places: Mapping[str, Mapping[str, tuple[int, int]]]
    """The places of the columns of each input, by its alias."""

    @classmethod
    def of(cls, bound: BoundStage) -> "Meaning":
        return cls(bound, {alias: _places(relation) for alias, relation in bound.of.items()})

    @property
    def stage(self) -> Stage:
        return self.bound.stage

    def rows(self, states: States, driver: Rows) -> dict[Key, tuple[Row, Key]]:
        """Return the rows over these rows of the driver, each with the key of its driver's row."""
        target, alias = self.bound.target, self.stage.driver.alias
        texts = {value.name: value.sql for value in self.stage.rows}
        key, rest = _names(target)
        found: dict[Key, tuple[Row, Key]] = {}
        for one in self._combined(states, driver):
            values = {name: self._value(sql, one) for name, sql in texts.items()}
            first = one[alias]
            assert first is not None
            made = tuple(values[name] for name in key)
            assert made not in found, f"two rows of {target.name} have the key {made}"
            found[made] = tuple(values[name] for name in rest), first[0]
        return found

    def sums(self, states: States, driver: Rows) -> dict[Key, tuple[int, ...]]:
        """Return what these rows of the driver contribute to each group."""
        aggregate = self.stage.aggregate
        assert aggregate is not None
        texts = {value.name: value.sql for value in self.stage.rows}
        found: dict[Key, tuple[int, ...]] = {}
        for one in self._combined(states, driver):
            key = tuple(self._value(texts[name], one) for name in aggregate.keys)
            more = [self._value(texts[name], one) for name in aggregate.measures]
            before = found.get(key, (0,) * len(more))
            found[key] = tuple(map(sum, zip(before, more, strict=True)))
        return found

    def group(self, sums: Sequence[int]) -> Row:
        """Return the row of a group with these sums."""
        aggregate = self.stage.aggregate
        assert aggregate is not None
        values: dict[str, Any] = dict(zip(aggregate.measures, sums, strict=True))
        values |= {one.name: _RESULTS[one.sql](values) for one in aggregate.results}
        _, rest = _names(self.bound.target)
        return tuple(values[name] for name in rest)

    def sums_of(self, row: Row) -> tuple[int, ...]:
        """Return the sums that the row of a group holds."""
        aggregate = self.stage.aggregate
        assert aggregate is not None
        _, rest = _names(self.bound.target)
        return tuple(row[rest.index(name)] for name in aggregate.measures)

    def parts(self, rows: Rows) -> dict[Key, dict[Key, Row]]:
        """Return the rows of each part of the only input."""
        partition = self.stage.partition
        assert partition is not None
        of = self.places[self.stage.driver.alias]
        places = [of[name] for name in partition.columns]
        found: dict[Key, dict[Key, Row]] = {}
        for key, row in rows.items():
            both = (key, row)
            found.setdefault(tuple(both[side][place] for side, place in places), {})[key] = row
        return found

    def computed(self, part: Rows) -> dict[Key, Row]:
        """Return the target's rows of one part."""
        assert self.stage.partition is not None
        return _PARTS[self.stage.partition.sql](part)

    def vnode(self, key: Key, driver: int) -> int:
        """Return the vnode of a row of the target, whose driver's row has another."""
        target, names = self.bound.target, [part.name for part in self.bound.target.key]
        if not self.stage.distribution:
            return driver
        return placed(tuple(key[names.index(name)] for name in self.stage.distribution), target.vnode_count)

    def _combined(self, states: States, driver: Rows) -> Iterable[Combination]:
        first = self.stage.driver.alias
        found: Iterable[Combination] = ({first: item} for item in driver.items())
        for join in self.stage.joins:
            for one in join.inputs:
                if one.alias != first:
                    (condition,) = join.on
                    found = self._joined(found, one, condition, seen(states, one), join.kind is JoinKind.LEFT)
        return found

    def _joined(
        self, before: Iterable[Combination], one: Input, condition: Condition, rows: Rows, pads: bool
    ) -> Iterator[Combination]:
        assert condition.equal is not None
        mine, other = condition.equal if condition.equal[0].alias == one.alias else condition.equal[::-1]
        assert mine.column is not None
        side, place = self.places[one.alias][mine.column]
        by_value: dict[Any, list[Item]] = {}
        for item in rows.items():
            by_value.setdefault(item[side][place], []).append(item)
        for combination in before:
            value = self._value(other.sql, combination)
            matches = () if value is None else by_value.get(value, ())
            for item in matches:
                yield {**combination, one.alias: item}
            if pads and not matches:
                yield {**combination, one.alias: None}

    def _value(self, sql: str, combination: Combination) -> Any:
        def of(alias: str, name: str) -> Any:
            item = combination[alias]
            if item is None:
                return None
            side, place = self.places[alias][name]
            return item[side][place]

        plain = _plain(sql)
        return _VALUES[sql](of) if plain is None else of(*plain)


def seen(states: States, one: Input) -> Rows:
    """Return the rows of an input."""
    return states[one.alias] if one.alias in states else states[one.relation]


def whole(meaning: Meaning, states: States) -> dict[Key, Row]:
    """Return what the target holds over the whole of its inputs."""
    driver = seen(states, meaning.stage.driver)
    if meaning.stage.partition is not None:
        parts = meaning.parts(driver) or ({(): {}} if meaning.stage.is_whole else {})
        return {key: row for part in parts.values() for key, row in meaning.computed(part).items()}
    return over(meaning, states, driver)


def over(meaning: Meaning, states: States, driver: Rows) -> dict[Key, Row]:
    """Return the rows, or the groups, over some rows of the driver."""
    if meaning.stage.aggregate is not None:
        return {key: meaning.group(sums) for key, sums in meaning.sums(states, driver).items()}
    return {key: row for key, (row, _) in meaning.rows(states, driver).items()}


def begun(meaning: Meaning, rows: Rows, vnode: Placed, read: Callable[[Key], bool]) -> dict[Key, Row]:
    """Return the target's rows of the parts whose first row was `read`."""
    found: dict[Key, Row] = {}
    for part in meaning.parts(rows).values():
        if read(min(part, key=lambda key: (vnode(key), str(key)))):
            found |= meaning.computed(part)
    return found


def _names(relation: Relation) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of the key, and the others."""
    key = tuple(part.name for part in relation.key)
    return key, tuple(column.name for column in relation.columns if column.name not in key)


# How they are made.


@dataclass(frozen=True, slots=True)
class Chain:
    """The stages of a view, each with its driver and what it writes: hidden relations, then the view."""

    stages: tuple[Stage, ...]
    targets: tuple[Relation, ...]
    read: tuple[Relation, ...]

    @property
    def drivers(self) -> tuple[int, ...]:
        """How many vnodes the driver of each stage has."""
        of = {one.id: one for one in self.read}
        of |= {hidden_id(place): one for place, one in enumerate(self.targets)}
        return tuple(of[stage.driver.relation].vnode_count for stage in self.stages)

    @property
    def order(self) -> Order:
        """A stage waits for those whose relations it reads."""
        nodes = [*(hidden_id(place) for place in range(len(self.stages) - 1)), THE_RELATION]
        return tuple(
            (one.relation, node)
            for node, stage in zip(nodes, self.stages, strict=True)
            for one in stage.inputs
            if one.relation < THE_RELATION
        )


def joined(first: Relation, second: Relation) -> Chain:
    """Return each row of `first` with the row of the table `second` at its value, if there is one."""
    return Chain((_rows(JoinKind.INNER, first, second, _PAIRED),), (_target(len(first.key), first, second),), (first,))


def padded(first: Relation, second: Relation) -> Chain:
    """Return each row of `first` with the row of the table `second` at its value."""
    return Chain((_rows(JoinKind.LEFT, first, second, _PADDED),), (_target(len(first.key), first, second),), (first,))


def chosen(first: Relation, second: Relation) -> Chain:
    """Return a row of each part of `first`."""
    del second
    stage = Stage(
        joins=(_driver(first),), partition=Partition(columns=("v",), sql=_FIRST), distribution=_keys(len(first.key))
    )
    return Chain((stage,), (_target(len(first.key), first),), (first,))


def topped(first: Relation, second: Relation) -> Chain:
    """Return the two largest of the groups of a join."""
    groups, target = _groups(first, second), _target(1, first, second)
    joins = (_join(JoinKind.INNER, first, second, "v"),)
    return Chain((_counted(joins, _column("i1", "v")), _chosen_groups(groups, ())), (groups, target), (first,))


def topped_alike(first: Relation, second: Relation) -> Chain:
    """Return the two first of the groups of each size, over the rows of a join."""
    rows, groups, target = _target(len(first.key), first, second), _groups(first, second), _target(1, first, second)
    rows, groups = (one.model_copy(update={"id": hidden_id(place)}) for place, one in enumerate((rows, groups)))
    folded = _counted((_driver(rows),), _FOLDED)
    stages = (_rows(JoinKind.LEFT, first, second, _PADDED), folded, _chosen_groups(groups, ("n",)))
    return Chain(stages, (rows, groups, target), (first,))


def beside_groups(first: Relation, second: Relation) -> Chain:
    """Return each row of `first` with the group of `second` at its value."""
    groups, target = _groups(second), _target(len(first.key), first, second)
    counted = _counted((_driver(second),), _column("i0", "v"))
    return Chain((counted, _rows(JoinKind.LEFT, first, groups, _PADDED)), (groups, target), (first, second))


def grouped(first: Relation, second: Relation) -> Chain:
    """Return the groups of the pairs of rows with equal values."""
    pairs = _target(len(first.key) + len(second.key), first, second).model_copy(update={"id": hidden_id(0)})
    on = _equal("i0", "v", "i1", "v")
    join = Join(kind=JoinKind.INNER, inputs=(_input("i0", first), _input("i1", second)), on=(on,))
    columns = [*(("i0", part.name) for part in first.key), *(("i1", part.name) for part in second.key)]
    rows = (Value(name="v", sql=_PAIRED), *(_key(place, *one) for place, one in enumerate(columns)))
    stages = (Stage(joins=(join,), rows=rows), _counted((_driver(pairs),), _FOLDED))
    return Chain(stages, (pairs, _groups(first, second)), (first,))


CHAINS: Final = (joined, padded, chosen, topped, topped_alike, beside_groups, grouped)


def _rows(kind: JoinKind, first: Relation, second: Relation, value: str) -> Stage:
    rows = (Value(name="v", sql=value), *(_key(place, "i0", part.name) for place, part in enumerate(first.key)))
    join = _join(kind, first, second, "v")
    return Stage(joins=(join,) if kind is JoinKind.INNER else (_driver(first), join), rows=rows)


def _counted(joins: tuple[Join, ...], key: str) -> Stage:
    return Stage(
        joins=joins,
        rows=(Value(name="_k0", sql=key), Value(name="n", sql="1"), Value(name="s", sql=_column("i0", "v"))),
        aggregate=Aggregate(keys=("_k0",), measures=("n", "s"), results=(Value(name="v", sql=_SUMMED),)),
        distribution=("_k0",),
    )


def _chosen_groups(groups: Relation, columns: tuple[str, ...]) -> Stage:
    return Stage(joins=(_driver(groups),), partition=Partition(columns=columns, sql=_TOP), distribution=("_k0",))


def _groups(*read: Relation) -> Relation:
    return _target(1, *read, measures=("n", "s")).model_copy(update={"id": hidden_id(0)})


def _target(keys: int, *read: Relation, measures: tuple[str, ...] = ()) -> Relation:
    return _relation(keys, max(one.vnode_count for one in read), measures)


@lru_cache(maxsize=256)
def _relation(keys: int, vnode_count: int, measures: tuple[str, ...]) -> Relation:
    names = _keys(keys)
    return Relation(
        id=RelationId(0),
        name="stage",
        kind=RelationKind.MATERIALIZED_VIEW,
        columns=(
            Column(name="v", type=_NUMBER),
            *(Column(name=name, type=_NUMBER, hidden=True) for name in (*measures, *names)),
        ),
        key=tuple(KeyColumn(name=name) for name in names),
        vnode_count=vnode_count,
    )


def _join(kind: JoinKind, first: Relation, second: Relation, column: str) -> Join:
    """Return a join by the only key column of `second`."""
    (key,) = second.key
    on = _equal("i0", column, "i1", key.name)
    if kind is JoinKind.INNER:
        return Join(kind=kind, inputs=(_input("i0", first), _input("i1", second)), on=(on,))
    return Join(kind=kind, inputs=(_input("i1", second),), on=(on,))


def _driver(relation: Relation) -> Join:
    return Join(kind=JoinKind.INNER, inputs=(_input("i0", relation),))


def _input(alias: str, relation: Relation) -> Input:
    return Input(alias=alias, relation=relation.id)


def _equal(alias: str, column: str, other: str, key: str) -> Condition:
    sides = tuple(
        Side(sql=_column(one, name), inputs=(one,), alias=one, column=name)
        for one, name in ((alias, column), (other, key))
    )
    return Condition(sql=f"({sides[0].sql} = {sides[1].sql})", inputs=(alias, other), equal=(sides[0], sides[1]))


def _key(place: int, alias: str, column: str) -> Value:
    return Value(name=f"_k{place}", sql=_column(alias, column))


def _keys(count: int) -> tuple[str, ...]:
    return tuple(f"_k{place}" for place in range(count))


def _column(alias: str, name: str) -> str:
    return f'"{alias}"."{name}"'
