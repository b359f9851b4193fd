"""The connector `blackhole` counts rows and drops them. It serves to measure a query without the cost of storage."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from service.protocol.ids import Epoch
from service.protocol.relation import Relation
from workers.state_store.port import CLOSE, OPERATION, Written


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
            closes = pc.equal(batch.column(OPERATION), pa.scalar(CLOSE, pa.int8())).true_count
            made, gone = made + batch.num_rows - closes, gone + closes
        return Written(inserted=made, closed=gone)
