"""A stage with its relations, and the states that it reads in an epoch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from service.protocol.ids import Epoch, RelationId
from service.protocol.relation import Relation
from service.protocol.stage import Stage


@dataclass(frozen=True, slots=True)
class Window:
    """The states of a relation before and after an epoch: what changed is in `(after, upto]`."""

    after: Epoch
    upto: Epoch


Windows = Mapping[RelationId, Window]


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
