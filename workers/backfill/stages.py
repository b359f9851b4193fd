"""A stage with its relations, and the states that it reads in an epoch."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from service.protocol.ids import Epoch, RelationId
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.relation import Relation
from service.protocol.stage import Condition, Equalities, Join, JoinKind, Stage
from workers.backfill.order import Position


@dataclass(frozen=True, slots=True)
class Window:
    """The states of a relation before and after an epoch: what changed is in `(after, upto]`."""

    after: Epoch
    upto: Epoch


Windows = Mapping[RelationId, Window]


@dataclass(frozen=True, slots=True)
class Reached:
    """The prefix of an input that was read: vnodes that are completed, and the key that others have come to."""

    completed: frozenset[int]
    keys: Mapping[int, Position]

    @classmethod
    def of(cls, positions: Iterable[VnodePosition]) -> "Reached":
        """Return the prefix that some positions describe."""
        known = tuple(positions)
        return cls(
            frozenset(one.vnode for one in known if one.state is PositionState.COMPLETED),
            {one.vnode: one.key for one in known if one.key is not None},
        )


@dataclass(frozen=True, slots=True)
class Advance:
    """How far one input was read before an epoch, and how far after it."""

    before: Reached
    after: Reached


Advances = Mapping[str, Advance]
"""By alias. An input that is not named was read to its end before the epoch, or has no history to be read."""


@dataclass(frozen=True)
class BoundStage:
    """A stage with the relations that it reads and the one that it writes."""

    stage: Stage
    target: Relation
    relations: Mapping[RelationId, Relation]

    @cached_property
    def of(self) -> Mapping[str, Relation]:
        """The relation of each input."""
        return {one.alias: self.relations[one.relation] for one in self.stage.inputs}

    @cached_property
    def equalities(self) -> Equalities:
        """The equalities of the stage's conditions."""
        return Equalities(self.stage)

    @property
    def upstream(self) -> Relation:
        """The driver's relation."""
        return self.relations[self.stage.driver.relation]


def meeting(stage: Stage, join: Join) -> tuple[list[str], list[Condition]]:
    """Return the inputs beside the core with which rows of the core meet a group's, and the conditions for it.

    A condition on further groups may hold for a row that they pad, so it is left out: more rows are named then.
    """
    before = _needed(stage, join)
    core = [one.alias for one in stage.joins[0].inputs]
    beside = [one.alias for group in (*before, join) for one in group.inputs]
    every = [*stage.joins[0].on, *join.on, *(on for group in before for on in group.on)]
    return beside, [on for on in every if {*core, *beside}.issuperset(on.inputs)]


def _needed(stage: Stage, join: Join) -> list[Join]:
    """Return the earlier outer joins without whose rows a group matches nothing.

    A condition of the group, or of another one that is needed, rejects rows that they padded with NULLs.
    """
    found: list[Join] = []
    rejected = _rejected(join)
    for group in reversed(stage.joins[1 : stage.joins.index(join)]):
        if group.kind is JoinKind.LEFT and rejected & {one.alias for one in group.inputs}:
            found.append(group)
            rejected |= _rejected(group)
    return found[::-1]


def _rejected(join: Join) -> set[str]:
    """Return the inputs whose padded rows a group does not match."""
    return {alias for on in join.on for alias in _rejected_by(on)}


def _rejected_by(on: Condition) -> Collection[str]:
    if on.rejects is not None:
        return on.rejects
    return on.inputs if on.equal is not None else ()
