"""The connector `blackhole` counts rows and drops them. It serves to measure a query without the cost of storage."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from service.protocol.ids import Epoch
from service.protocol.relation import Relation
from workers.state_store.port import Written
from workers.state_store.wire import is_close


@dataclass(frozen=True, slots=True)
class Blackhole:
    """Drops all rows."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Blackhole":
        """Return the writer, which has no options."""
        del options
        return cls()

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """See `SinkWriter`."""
        del relation, epoch
        made = gone = 0
        for batch in rows:
            closes = is_close(batch).true_count
            made, gone = made + batch.num_rows - closes, gone + closes
        return Written(inserted=made, closed=gone)
