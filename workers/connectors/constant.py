"""The reader of the connector `constant`. `service.protocol.constant` has its rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from service.protocol.constant import Row, rows_of
from service.protocol.relation import Relation
from workers.connectors.port import Part


@dataclass(frozen=True, slots=True)
class Constants:
    """Gives the rows of one view. They are few."""

    rows: tuple[Row, ...]
    whole: ClassVar[bool] = True

    @classmethod
    def of(cls, options: Mapping[str, str], relation: Relation) -> "Constants":
        """Return the reader."""
        del relation
        return cls(rows_of(options))

    def due(self, split: int, since_ms: int, upto_ms: int) -> int:
        """See `SplitReader`. One more than there are, so that the end is read too."""
        del split, since_ms, upto_ms
        return len(self.rows) + 1

    def read(self, split: int, after: str | None, most: int) -> Part:
        """See `SplitReader`."""
        del split
        first = int(after or 0)
        rows = self.rows[first : first + most]
        return Part(rows, str(first + len(rows)), over=len(rows) < most)
