"""The connector `blackhole`: it counts rows and drops them. It measures what a query costs without any storage."""

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
        """Return the writer; it has no options."""
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
