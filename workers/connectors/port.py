"""The protocol of a sink's connector in a worker.

To add one, write a module with a `SinkWriter`, list it in `workers.connectors.kinds`, and list its options in
`service.domain.connectors`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import pyarrow as pa

from service.protocol.ids import Epoch
from service.protocol.relation import Relation
from workers.state_store.port import Written


class SinkWriter(Protocol):
    """Takes the rows of a sink's scan in place of a versioned table. A small value that travels to every task."""

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """Deliver what one actor has to say at `epoch`; when this returns, the external system has it.

        The rows are in the form of `VersionedStore.write`: keys that are no more (CLOSE) come first. An epoch that is
        run again after a recovery is delivered again.
        """
        ...


MakeWriter = Callable[[Mapping[str, str]], SinkWriter]
"""Returns the writer of a sink with these options."""
