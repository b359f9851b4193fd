"""Chains of stages as operators: from the first epoch on they follow the prefixes that scans of their inputs read.

Each occurrence of a table has positions of its own. The oracle restricts each occurrence to its prefix, and evaluates
the stages as plain SELECTs over that: nothing of the worker's SQL is in it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import psycopg

from service.protocol.columns import ColumnType, TypeName
from service.protocol.ids import Epoch, RelationId
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.quoting import quoted, quoted_text
from service.protocol.relation import ALIVE, Relation, state_table
from service.protocol.stage import Stage
from service.protocol.vnodes import runs_of
from tests.support import stages_oracle
from tests.support.stage_chains import Chain, Chains
from workers.backfill.actors import ActorTask, FragmentTask
from workers.backfill.stages import BoundStage, Window
from workers.engines.operators import OperatorEngine, OperatorTask

ACTORS: Final = 2
OCCURRENCE: Final = 10_000
"""From this id on, a relation of the oracle is one occurrence, restricted to its prefix."""


@dataclass
class Operator:
    """One stage of a chain, and the positions of its scans, by alias."""

    bound: BoundStage
    engine: OperatorEngine
    positions: dict[str, dict[int, VnodePosition]]

    def left(self, alias: str) -> bool:
        """Whether an input has history that was not read."""
        known = self.positions[alias]
        done = sum(one.state is PositionState.COMPLETED for one in known.values())
        return done < self.bound.of[alias].vnode_count

    @property
    def finished(self) -> bool:
        return not any(map(self.left, self.positions))


@dataclass
class Arranged:
    """A view whose history is being read, and the epoch that it has followed."""

    chain: Chain
    operators: list[Operator]
    chains: Chains
    random: Random
    followed: int
    begun: bool = False

    @classmethod
    def of(cls, chains: Chains, chain: Chain, random: Random) -> "Arranged":
        own = {link.bound.target.id for link in chain.links}
        operators = [
            Operator(
                link.bound,
                OperatorEngine(link.engine.store, link.bound, chains.copiers),
                {one.alias: {} for one in link.bound.stage.inputs if one.relation not in own},
            )
            for link in chain.links
        ]
        return cls(chain, operators, chains, random, chains.epoch)

    @property
    def finished(self) -> bool:
        return all(one.finished for one in self.operators)

    def run(self, page: tuple[int, int | None] | None = None) -> None:
        """Run an epoch in which all changes since the last one are followed, and some of the scans read some rows.

        With a `page`, its rows and permits are those of every actor.
        """
        self.chains.epoch += 1
        curr = self.chains.epoch
        own = {one.bound.target.id for one in self.operators}
        written: set[RelationId] = set()
        for one in self.operators:
            changed = {
                relation
                for relation in one.bound.relations
                if (relation in written if relation in own else self.chains.written.get(relation, 0) > self.followed)
            }
            window, mine = Window(Epoch(self.followed), Epoch(curr)), Window(Epoch(curr - 1), Epoch(curr))
            stage = one.bound.stage
            always = stage.is_whole or (stage.aggregate is not None and stage.aggregate.always)
            task = OperatorTask(
                curr=Epoch(curr),
                windows={relation: mine if relation in own else window for relation in one.bound.relations},
                changed=frozenset(changed),
                scans={
                    alias: self._scan(one, alias, page or self._some()) for alias in one.positions if one.left(alias)
                },
                anew=always and not self.begun,
            )
            outcome = one.engine.run(task)
            for alias, outcomes in outcome.scans.items():
                for each in outcomes:
                    one.positions[alias] |= {position.vnode: position for position in each.positions}
            if outcome.replayed.written.inserted or outcome.replayed.written.closed:
                written.add(one.bound.target.id)
        self.begun, self.followed = True, curr

    def _some(self) -> tuple[int, int | None]:
        rows = self.random.choice([0, 1, 3, 8, 20])
        return max(rows, 1), rows if rows == 0 or self.random.random() < 0.5 else None

    def _scan(self, one: Operator, alias: str, page: tuple[int, int | None]) -> FragmentTask:
        vnodes = range(one.bound.of[alias].vnode_count)
        half = len(vnodes) // ACTORS
        page_rows, permits = page
        actors = tuple(
            ActorTask(
                runs=runs_of(those),
                positions=tuple(one.positions[alias][vnode] for vnode in those if vnode in one.positions[alias]),
                permits=permits,
            )
            for those in (vnodes[half * at : half * (at + 1)] for at in range(ACTORS))
        )
        return FragmentTask(curr=Epoch(self.chains.epoch), actors=actors, page_rows=page_rows)

    async def differs(self, connection: psycopg.Connection) -> str | None:
        """Return where a relation of the view differs from its stage over the prefixes, or None.

        Raises psycopg.Error if the stages have no answer.
        """
        wanted = self._wanted(connection)
        for relation, rows in wanted.items():
            live = f"select row({_compared(relation)})::text from {state_table(relation.id)} where _to = {ALIVE}"
            held = Counter(row for (row,) in await self.chains.rows(live))
            if held != rows:
                return f"{relation.name} of {self.chain.query}: missing {rows - held}, too many {held - rows}"
        return None

    def _wanted(self, connection: psycopg.Connection) -> dict[Relation, Counter[str | None]]:
        with connection.transaction(force_rollback=True):
            connection.execute("set local search_path = plain, public; set local statement_timeout = '30s'")
            connection.execute("drop schema if exists stages cascade; create schema stages")
            tables: dict[RelationId, str] = {}
            stages: list[tuple[Stage, Relation]] = []
            for number, one in enumerate(self.operators):
                stages.append((_by_occurrence(one, number), one.bound.target))
                for place, alias in enumerate(one.positions):
                    name = f"stages.p_{number}_{place}"
                    prefix = _prefix(one.bound.of[alias], one.positions[alias])
                    stages_oracle.run(connection, f"create table {name} as {prefix}")
                    tables[RelationId(_occurrence(number, place))] = name
            stages_oracle.fill(connection, stages, tables)
            found: dict[Relation, Counter[str | None]] = {}
            for target in {one.id: one for _, one in stages}.values():
                rows = stages_oracle.run(connection, f"select row({_compared(target)})::text from {tables[target.id]}")
                found[target] = Counter(row for (row,) in rows)
            return found


def _compared(relation: Relation) -> str:
    """Print the columns of a relation. The sums of a state are compared by value: they keep digits that went again."""
    seen = {column.name for column in relation.visible}
    return ", ".join(
        f"trim_scale({quoted(column.name)})"
        if column.name not in seen and _is_sum(column.type)
        else quoted(column.name)
        for column in relation.columns
    )


def _is_sum(kind: ColumnType) -> bool:
    return kind.name is TypeName.NUMERIC and kind.precision is None and not kind.array


def _occurrence(number: int, place: int) -> int:
    return OCCURRENCE + 100 * number + place


def _by_occurrence(one: Operator, number: int) -> Stage:
    """Return a stage in which each occurrence of a table is a relation of its own."""
    places = {alias: _occurrence(number, place) for place, alias in enumerate(one.positions)}
    joins = tuple(
        join.model_copy(
            update={
                "inputs": tuple(
                    each.model_copy(update={"relation": RelationId(places.get(each.alias, each.relation))})
                    for each in join.inputs
                )
            }
        )
        for join in one.bound.stage.joins
    )
    return one.bound.stage.model_copy(update={"joins": joins})


def _prefix(relation: Relation, positions: dict[int, VnodePosition]) -> str:
    """Return the query for the live rows whose keys were read. Keys of these tables ascend and have no NULL."""
    key = [(quoted(part.name), relation.column(part.name).type) for part in relation.key]
    names = ", ".join(name for name, _ in key)
    read = " or ".join(_read(position, names, key) for position in positions.values()) or "false"
    columns = ", ".join(quoted(column.name) for column in relation.columns)
    return f"select {columns} from {state_table(relation.id)} where _to = {ALIVE} and ({read})"


def _read(position: VnodePosition, names: str, key: Sequence[tuple[str, object]]) -> str:
    if position.key is None:
        return f"_vnode = {position.vnode}"
    values = ", ".join(_literals(position.key, key))
    return f"(_vnode = {position.vnode} and ({names}) <= ({values}))"


def _literals(texts: "tuple[str | None, ...]", key: Sequence[tuple[str, object]]) -> Iterator[str]:
    for text, (_, kind) in zip(texts, key, strict=True):
        assert text is not None
        yield f"{quoted_text(text)}::{kind}"
