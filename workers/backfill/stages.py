"""A stage with its relations, and the states that it reads in an epoch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from service.protocol.ids import Epoch, RelationId
from service.protocol.plan import PositionState, VnodePosition
from service.protocol.relation import Relation
from service.protocol.stage import Stage
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

    @property
    def upstream(self) -> Relation:
        """The driver's relation."""
        return self.relations[self.stage.driver.relation]
