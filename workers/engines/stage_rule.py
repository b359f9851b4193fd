"""The rows of a stage that changes remove and add, as joins of frames: the rule of `workers.state_store.stage_sql`.

    gone = union over i of  same(1) x .. x same(i-1) x old(i) x before(i+1) x .. x before(n)
    come = union over i of  same(1) x .. x same(i-1) x new(i) x after(i+1) x .. x after(n)

over the inputs 1..n of the core. The other groups are joined with these rows on both states. Rows of the core that are
the same, and meet a change there, are added: they are *touched*.

A join begins with the few rows that changed. They are sent to all tasks, so that no large input is exchanged.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import DataFrame

from service.protocol.stage_spark import spark_column
from workers.backfill.stages import BoundStage, meeting
from workers.engines.stage_inputs import InputStates
from workers.engines.stage_joins import StageJoins
from workers.queries.stage_spark import used_columns
from workers.state_store.port import CLOSE, LIVE, VNODE
from workers.state_store.wire import ticked


@dataclass
class StageRule:
    """One epoch of a stage."""

    bound: BoundStage
    inputs: Mapping[str, InputStates]
    kept: list[DataFrame] = field(default_factory=list[DataFrame])
    """Frames that are used more than once, so that they are computed once."""

    def __post_init__(self) -> None:
        self.core, *self.attached = self.bound.stage.joins
        small = frozenset(alias for alias, states in self.inputs.items() if states.is_small)
        self.joins = StageJoins(self.bound, small, self._keep)
        touched = list(self._touched())
        self.touched = self._keep(self._distinct(reduce(DataFrame.unionAll, touched))) if touched else None

    def rows(self, side: int) -> DataFrame | None:
        """Return what is gone (`CLOSE`) or what has come (`LIVE`): the stage's rows by name. None are no rows.

        They have the driver's `VNODE` if their own is not computed from their values.
        """
        cores = [
            self._core(one.alias, versions, side).select(*self._core_columns())
            for one in self.core.inputs
            if (versions := self.inputs[one.alias].versions(side)) is not None
        ]
        if self.touched is not None:
            cores.append(self.touched)
        if not cores:
            return None
        states = {one.alias: self.inputs[one.alias].state(side) for join in self.attached for one in join.inputs}
        return self.joins.beyond(reduce(DataFrame.unionAll, cores), states)

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
        return self.joins.chain(versions, first, others, self.core.on)

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
                    met = self.joins.chain(versions, one.alias, others, conditions)
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
