"""The reader of the connector `datagen`. `service.protocol.datagen` defines its rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from service.protocol import datagen
from service.protocol.relation import ROW_ID, Relation
from workers.connectors.port import Part


@dataclass(frozen=True, slots=True)
class Generator:
    """Generates the rows of one table."""

    rules: datagen.Datagen
    keyless: bool
    """Whether the user declared no key. A row's number is then its hidden key."""
    whole: ClassVar[bool] = False

    @classmethod
    def of(cls, options: Mapping[str, str], relation: Relation) -> "Generator":
        """Return the reader. The service has checked the options."""
        return cls(datagen.read(options, relation.visible), any(part.name == ROW_ID for part in relation.key))

    def due(self, split: int, since_ms: int, upto_ms: int) -> int:
        """See `SplitReader`."""
        splits = self.rules.splits
        # The rate is divided evenly between the splits. The first ones get the remainder.
        per_second = self.rules.rows_per_second // splits + (split < self.rules.rows_per_second % splits)
        return per_second * upto_ms // 1000 - per_second * since_ms // 1000

    def read(self, split: int, after: str | None, most: int) -> Part:
        """See `SplitReader`."""
        first = int(after or 0)
        rows = list(self.rules.rows(split, first, most))
        if self.keyless:
            rows = [(*row, str(self.rules.number(split, first + place))) for place, row in enumerate(rows)]
        return Part(rows, str(first + len(rows)), over=len(rows) < most)
