"""Compute the rows of a stage from frames of its inputs: joins, conditions and values, for history and for changes.

The rows of one input are followed through the joins: those of a page of history, or the few that changed. Small inputs
are sent to all tasks. Where the followed rows are few, they are sent in place of a large input, so that it is not
exchanged.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own customary name

from service.protocol.stage import Condition, Join, JoinKind
from service.protocol.stage_spark import may_follow
from workers.backfill.stages import BoundStage
from workers.queries.stage_spark import all_of
from workers.spark.killable import killable
from workers.state_store.port import VNODE

_HOW = {JoinKind.INNER: "inner", JoinKind.LEFT: "left", JoinKind.SEMI: "leftsemi", JoinKind.ANTI: "leftanti"}


@dataclass(frozen=True)
class StageJoins:
    """The joins of one stage. A frame has the columns of an input by their names among those of all inputs.

    `small` inputs can be sent to all tasks. With `keep`, the followed rows are few: it returns a frame that is used
    twice so that it is computed once.
    """

    bound: BoundStage
    small: Collection[str]
    keep: Callable[[DataFrame], DataFrame] | None = None

    def rows(self, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """Return the stage's rows by name, and the driver's `VNODE` if their own is not computed from their values.

        The driver's rows are followed.
        """
        driver, *others = [one.alias for one in self.bound.stage.joins[0].inputs]
        conditions = self.bound.stage.joins[0].on
        core = self.chain(inputs[driver], driver, {one: inputs[one] for one in others}, conditions)
        return self.beyond(core, inputs)

    def chain(
        self, rows: DataFrame, first: str, others: Mapping[str, DataFrame], conditions: Sequence[Condition]
    ) -> DataFrame:
        """Join other inputs to followed rows, one after another, each on the conditions that can be decided then."""
        return self._chain(rows, first, others, conditions, few=self.keep is not None)

    def _chain(
        self,
        rows: DataFrame,
        first: str,
        others: Mapping[str, DataFrame],
        conditions: Sequence[Condition],
        *,
        few: bool,
    ) -> DataFrame:
        alone = [on for on in conditions if {first}.issuperset(on.inputs)]
        pending = [on for on in conditions if on not in alone]
        rows, placed, left = killable(rows.where(_all(alone))), {first}, list(others)
        single = {one.alias for one in self.bound.stage.inputs if one.single}
        while left:
            alias = next((one for one in left if may_follow(one, placed, single, pending)), left[0])
            left.remove(alias)
            placed.add(alias)
            here = [on for on in pending if placed.issuperset(on.inputs)]
            pending = [on for on in pending if on not in here]
            other = killable(others[alias])
            if alias in self.small:
                other = F.broadcast(other)
            elif few:
                rows = F.broadcast(rows)
            rows = killable(rows.join(other, _all(here), "inner"))
        assert not pending, pending
        return rows

    def beyond(self, core: DataFrame, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """Join the other groups to rows of the core, and return the stage's rows. See `rows`."""
        stage, rows = self.bound.stage, core
        for join in stage.joins[1:]:
            rows = self._attached(rows, join, inputs)
        apart = bool(stage.distribution) or stage.aggregate is not None
        values = [F.expr(str(one.spark)).alias(one.name) for one in stage.rows]
        return rows.where(_all(stage.where)).select(*([] if apart else [F.col(VNODE)]), *values)

    def _attached(self, rows: DataFrame, join: Join, inputs: Mapping[str, DataFrame]) -> DataFrame:
        inside = {one.alias for one in join.inputs}
        on = [one for one in join.on if not inside.issuperset(one.inputs)]
        own = [one for one in join.on if inside.issuperset(one.inputs)]
        first, *others = [one.alias for one in join.inputs]
        group = self._chain(inputs[first], first, {alias: inputs[alias] for alias in others}, own, few=False)
        if inside.issubset(self.small):
            group = F.broadcast(group)
        elif self.keep is not None:
            # Spark can send only the right side of such a join to all tasks. So the group is reduced first.
            rows = self.keep(rows)
            group = killable(group.join(F.broadcast(rows), _all(on), "leftsemi"))
        return killable(rows.join(group, _all(on), _HOW[join.kind]))


def _all(conditions: Sequence[Condition]) -> Column:
    return F.expr(all_of(conditions))
