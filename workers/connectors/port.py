"""Define the protocols of connectors in a worker: a source reads by splits, a sink takes rows.

To add one, write a module with a `SplitReader` or a `SinkWriter`, list it in `workers.connectors.kinds`, and list it
with the check of its options in `service.domain.connectors`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import pyarrow as pa

from service.protocol.ids import Epoch
from service.protocol.relation import Relation
from workers.state_store.port import Written


class SinkWriter(Protocol):
    """Takes the rows of a sink's scan, in place of a versioned table. A small value, serialized into every task."""

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """Deliver the rows of one actor at `epoch`. When this returns, the external system has them.

        The rows have the form of `VersionedStore.write`, and deleted keys (CLOSE) come first. An epoch that runs again
        after a recovery is delivered again.
        """
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a split, as Postgres texts in the order of the relation's columns, including hidden ones.

    `position` is where the next part begins. Only the connector interprets it. `over`: no row follows.
    """

    rows: Sequence[tuple[str | None, ...]]
    position: str
    over: bool


class SplitReader(Protocol):
    """Reads the splits of an external system. An epoch that runs again reads from the same positions again."""

    whole: ClassVar[bool]
    """Whether the first epoch reads all rows, whatever limits and pauses say."""

    def due(self, split: int, since_ms: int, upto_ms: int) -> int:
        """Return how many rows of a split an epoch may read. Its interval is given as Unix times in milliseconds."""
        ...

    def read(self, split: int, after: str | None, most: int) -> Part:
        """Read at most `most` rows of a split from the position `after` on. None is the beginning of the split."""
        ...


MakeReader = Callable[[Mapping[str, str], Relation], SplitReader]
"""Returns the reader of a table that is filled with these options."""
MakeWriter = Callable[[Mapping[str, str]], SinkWriter]
"""Returns the writer of a sink with these options."""
