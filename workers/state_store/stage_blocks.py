"""Print the joins of a stage, from the rows of one input on. Pure. Next: `workers.state_store.stage_sql`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.protocol.quoting import quoted
from service.protocol.relation import TRAVEL_PREFIX, state_table
from service.protocol.stage import Condition, Join, JoinKind
from service.protocol.vnodes import vnode_postgres
from workers.backfill.stages import BoundStage, meeting
from workers.state_store.stage_delta import NEW, OLD, Delta, states_of, unchanged

_ROW: Final = quoted(f"{TRAVEL_PREFIX}row")


@dataclass(frozen=True, slots=True)
class BlockPrinter:
    """Prints the terms of a block. With `looked_up`, each input is found row by row, by an index."""

    bound: BoundStage
    looked_up: bool = True

    @property
    def core(self) -> Join:
        return self.bound.stage.joins[0]

    @property
    def attached(self) -> Sequence[Join]:
        return self.bound.stage.joins[1:]

    def core_terms(self, side: str, delta: Delta) -> Iterator[str]:
        """Yield one term per changed input of the core: earlier inputs unchanged, later ones in their whole state."""
        states, same = states_of(delta, side), unchanged(delta)
        for place, one in enumerate(self.core.inputs):
            if one.alias in delta.moved:
                earlier = {each.alias: same[each.alias] for each in self.core.inputs[:place]}
                yield self.term(self.chain(one.alias, delta.source(one.alias, side), {**states, **earlier}), states)

    def touched(self, delta: Delta) -> Iterator[str]:
        """Yield the queries for the unchanged rows of the core that meet a changed version beside it.

        Such a row is named by the `ctid` of its versions, which no write moves while the statement runs.
        """
        core, same = [one.alias for one in self.core.inputs], unchanged(delta)
        rows = ", ".join(f"{quoted(alias)}.{_ROW} as {quoted(alias)}" for alias in core)
        for join in self.attached:
            beside, conditions = meeting(self.bound.stage, join)
            for one in join.inputs:
                for side in (OLD, NEW) if one.alias in delta.moved else ():
                    seen = {**states_of(delta, side), **{alias: same[alias] for alias in core}}
                    others = [alias for alias in (*beside, *core) if alias != one.alias]
                    source = delta.source(one.alias, side)
                    yield f"select {rows} from {self._chained(one.alias, source, others, conditions, seen, core)}"

    def rejoined(self) -> str:
        """Print the FROM of the core's rows in `touched`."""
        texts = ["touched"]
        for one in self.core.inputs:
            alias = quoted(one.alias)
            version = f"select * from {state_table(one.relation)} {alias} where ctid = touched.{alias} offset 0"
            texts.append(f"lateral ({version}) {alias}")
        return " cross join ".join(texts)

    def chain(self, first: str, source: str, seen: Mapping[str, str]) -> str:
        """Print the FROM of the core, from the rows of `source` on, with the other inputs in the given states."""
        others = [one.alias for one in self.core.inputs if one.alias != first]
        return self._chained(first, source, others, self.core.on, seen)

    def _chained(
        self,
        first: str,
        source: str,
        others: Sequence[str],
        conditions: Sequence[Condition],
        seen: Mapping[str, str],
        named: Collection[str] = (),
    ) -> str:
        alone = [on.sql for on in conditions if {first}.issuperset(on.inputs)]
        rest = [on for on in conditions if not {first}.issuperset(on.inputs)]
        where = f" where {' and '.join(alone)}" if alone else ""
        begin = f"(select * from {source} {quoted(first)}{where}) {quoted(first)}"
        items = self.items(others, {first}, rest, seen, named)
        return "".join([begin, *(f" join {item} on true" for item in items)])

    def items(
        self,
        aliases: Sequence[str],
        known: Collection[str],
        conditions: Sequence[Condition],
        seen: Mapping[str, str],
        named: Collection[str] = (),
    ) -> Iterator[str]:
        """Yield a lateral subquery for each input, each with the conditions that can be decided there.

        An input that can be looked up from the known ones comes before one that cannot. Inputs in `named` tell the
        place of their versions.
        """
        bound_now, left = set(known), list(aliases)
        pending = list(conditions)
        while left:
            alias = min(left, key=lambda one: self._reach(one, bound_now))
            left.remove(alias)
            bound_now.add(alias)
            here = [on for on in pending if bound_now.issuperset(on.inputs)]
            pending = [on for on in pending if on not in here]
            yield self._lookup(alias, bound_now - {alias}, here, seen[alias], named=alias in named)
        assert not pending, pending

    def _reach(self, alias: str, known: set[str]) -> int:
        if self.bound.equalities.by_key(self.bound.of, alias, known):
            return 0
        return 1 if any(self.bound.equalities.with_inputs(alias, known)) else 2

    def _lookup(self, alias: str, known: set[str], conditions: Sequence[Condition], seen: str, *, named: bool) -> str:
        relation, name = self.bound.of[alias], quoted(alias)
        where = [seen, *(on.sql for on in conditions)]
        keyed = self.bound.equalities.by_key(self.bound.of, alias, known) if self.looked_up else None
        if keyed is not None:
            values = [(keyed[part.name].sql, relation.column(part.name).type) for part in relation.key]
            where.insert(0, f"{name}._vnode = {vnode_postgres(values, relation.vnode_count)}")
        columns = f"*, {name}.ctid as {_ROW}" if named else "*"
        rows = f"select {columns} from {state_table(relation.id)} {name} where {' and '.join(where)}"
        return f"lateral ({rows}{' offset 0' if self.looked_up else ''}) {name}"

    def term(self, core: str, seen: Mapping[str, str]) -> str:
        """Print the rows of the block over the rows of the core, with everything else in the given states."""
        known = [one.alias for one in self.core.inputs]
        text, where = core, [on.sql for on in self.bound.stage.where]
        for join in self.attached:
            inputs = [one.alias for one in join.inputs]
            items = list(self.items(inputs, known, join.on, seen))
            within = items[0] + "".join(f" join {item} on true" for item in items[1:])
            match join.kind:
                case JoinKind.LEFT | JoinKind.INNER:
                    word = "left join" if join.kind is JoinKind.LEFT else "join"
                    text += f" {word} {within if len(items) == 1 else f'({within})'} on true"
                    known += inputs
                case JoinKind.SEMI:
                    where.append(f"exists (select from {within})")
                case JoinKind.ANTI:
                    where.append(f"not exists (select from {within})")
        kept = f" where {' and '.join(where)}" if where else ""
        return f"select {self._values()} from {text}{kept}"

    def _values(self) -> str:
        values = [f"{one.sql} as {quoted(one.name)}" for one in self.bound.stage.rows]
        driver = [] if self._apart else [f"{quoted(self.bound.stage.driver.alias)}._vnode"]
        return ", ".join([*driver, *values])

    @property
    def _apart(self) -> bool:
        """Whether the vnode of a row is computed from its values."""
        return bool(self.bound.stage.distribution) or self.bound.stage.aggregate is not None
