"""The rows of a stage that changes remove and add, as joins of frames: the rule of `workers.state_store.stage_sql`.

    gone = union over i of  same(1) x .. x same(i-1) x old(i) x before(i+1) x .. x before(n)
    come = union over i of  same(1) x .. x same(i-1) x new(i) x after(i+1) x .. x after(n)

over the inputs 1..n of the core. The other groups are joined with these rows on both states. Rows of the core that are
the same, and meet a change there, are added: they are *touched*.

A join begins with the few rows that changed. They are sent to all tasks, so that no large input is exchanged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name

from service.protocol.stage import Condition, Join, JoinKind
from service.protocol.stage_spark import equates, spark_column
from workers.backfill.stages import BoundStage, meeting
from workers.engines.stage_inputs import InputStates
from workers.queries.stage_spark import all_of, used_columns
from workers.state_store.port import CLOSE, LIVE, VNODE
from workers.state_store.wire import ticked

_HOW = {JoinKind.INNER: "inner", JoinKind.LEFT: "left", JoinKind.SEMI: "leftsemi", JoinKind.ANTI: "leftanti"}


@dataclass
class StageRule:
    """One epoch of a stage."""

    bound: BoundStage
    inputs: Mapping[str, InputStates]
    kept: list[DataFrame] = field(default_factory=list[DataFrame])
    """Frames that are used more than once, so that they are computed once."""

    def __post_init__(self) -> None:
        self.core, *self.attached = self.bound.stage.joins
        touched = list(self._touched())
        self.touched = self._keep(self._distinct(reduce(DataFrame.unionAll, touched))) if touched else None

    def rows(self, side: int) -> DataFrame | None:
        """Return what is gone (`CLOSE`) or what has come (`LIVE`): the stage's rows by name. None are no rows.

        They have the driver's `VNODE` if their own is not computed from their values.
        """
        terms = [
            self._term(self._core(one.alias, versions, side), side)
            for one in self.core.inputs
            if (versions := self.inputs[one.alias].versions(side)) is not None
        ]
        if self.touched is not None:
            terms.append(self._term(self.touched, side))
        return reduce(DataFrame.unionAll, terms) if terms else None

    def release(self) -> None:
        """Release the memory of the kept frames."""
        while self.kept:
            self.kept.pop().unpersist()

    def _keep(self, frame: DataFrame) -> DataFrame:
        self.kept.append(frame.persist())
        return frame

    def _core(self, first: str, versions: DataFrame, side: int) -> DataFrame:
        """Return the rows of the core with a version of one input: earlier inputs are the same, later ones whole."""
        aliases = [one.alias for one in self.core.inputs]
        place = aliases.index(first)
        others = {one: self.inputs[one].same for one in aliases[:place]}
        others |= {one: self.inputs[one].state(side) for one in aliases[place + 1 :]}
        return self._chain(versions, first, others, self.core.on)

    def _touched(self) -> Iterator[DataFrame]:
        """Yield the rows of the core that are the same and meet a changed version of another group."""
        core = [one.alias for one in self.core.inputs]
        for join in self.attached:
            beside, conditions = meeting(self.bound.stage, join)
            for one in join.inputs:
                for side in (CLOSE, LIVE):
                    if (versions := self.inputs[one.alias].versions(side)) is None:
                        continue
                    others = {alias: self.inputs[alias].state(side) for alias in beside if alias != one.alias}
                    others |= {alias: self.inputs[alias].same for alias in core}
                    met = self._chain(versions, one.alias, others, conditions)
                    yield self._distinct(met.select(*self._core_columns()))

    def _distinct(self, core: DataFrame) -> DataFrame:
        keys = [spark_column(one.alias, part.name) for one in self.core.inputs for part in self.bound.of[one.alias].key]
        return core.dropDuplicates(keys)

    def _core_columns(self) -> list[str]:
        columns = [
            spark_column(one.alias, column.name)
            for one in self.core.inputs
            for column in used_columns(self.bound, [one.alias]).columns
        ]
        return [ticked(name) for name in (VNODE, *columns)]

    def _chain(
        self, rows: DataFrame, first: str, others: Mapping[str, DataFrame], conditions: Sequence[Condition]
    ) -> DataFrame:
        """Join other inputs to some rows, one after another, each on the conditions that can be decided then."""
        alone = [on for on in conditions if {first}.issuperset(on.inputs)]
        pending = [on for on in conditions if on not in alone]
        rows, placed, left = rows.where(_all(alone)), {first}, list(others)
        while left:
            alias = next((one for one in left if any(equates(on, {one}, placed) for on in pending)), left[0])
            left.remove(alias)
            placed.add(alias)
            here = [on for on in pending if placed.issuperset(on.inputs)]
            pending = [on for on in pending if on not in here]
            rows = self._joined(rows, others[alias], here, small=self.inputs[alias].is_small)
        assert not pending, pending
        return rows

    def _joined(self, rows: DataFrame, other: DataFrame, on: Sequence[Condition], *, small: bool) -> DataFrame:
        left, right = (rows, F.broadcast(other)) if small else (F.broadcast(rows), other)
        return left.join(right, _all(on), "inner")

    def _term(self, core: DataFrame, side: int) -> DataFrame:
        """Return the rows of the block over some rows of the core, with everything else in one state."""
        stage, rows = self.bound.stage, core
        for join in self.attached:
            rows = self._attached(rows, join, side)
        apart = bool(stage.distribution) or stage.aggregate is not None
        values = [F.expr(str(one.spark)).alias(one.name) for one in stage.rows]
        return rows.where(_all(stage.where)).select(*([] if apart else [F.col(VNODE)]), *values)

    def _attached(self, rows: DataFrame, join: Join, side: int) -> DataFrame:
        inside = {one.alias for one in join.inputs}
        on = [one for one in join.on if not inside.issuperset(one.inputs)]
        own = [one for one in join.on if inside.issuperset(one.inputs)]
        first, *others = [one.alias for one in join.inputs]
        states = {alias: self.inputs[alias].state(side) for alias in others}
        group = self._chain(self.inputs[first].state(side), first, states, own)
        if all(self.inputs[alias].is_small for alias in inside):
            group = F.broadcast(group)
        else:
            # Spark can send only the right side of such a join to all tasks. So the group is reduced first.
            rows = self._keep(rows)
            group = group.join(F.broadcast(rows), _all(on), "leftsemi")
        return rows.join(group, _all(on), _HOW[join.kind])


def _all(conditions: Sequence[Condition]) -> Column:
    return F.expr(all_of(conditions))
