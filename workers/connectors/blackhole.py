"""The connector `blackhole` counts rows and drops them. It serves to measure a query without the cost of storage."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from service.protocol.ids import Epoch, Generation
from service.protocol.relation import Relation
from workers.connectors.port import KeptVersions
from workers.state_store.port import Written
from workers.state_store.wire import is_close


@dataclass(frozen=True, slots=True)
class Blackhole:
    """Drops all rows."""

    @classmethod
    def of(cls, options: Mapping[str, str], relation: Relation, generation: Generation) -> "Blackhole":
        """Return the sink, which has no options."""
        del options, relation, generation
        return cls()

    @property
    def commit_seconds(self) -> float:
        """See `Sink`."""
        return 0.0

    @property
    def writer(self) -> "Blackhole":
        """See `Sink`."""
        return self

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """See `SinkWriter`."""
        del relation, epoch
        made = gone = 0
        for batch in rows:
            closes = is_close(batch).true_count
            made, gone = made + batch.num_rows - closes, gone + closes
        return Written(inserted=made, closed=gone)

    def begin(self, committed: Epoch) -> None:
        """See `Sink`."""

    def commit(self, upto: Epoch) -> None:
        """See `Sink`."""

    def pending(self, upto: Epoch) -> tuple[int, None]:
        """See `Sink`. It has no rows, and one version."""
        del upto
        return 0, None

    def keep_up(self, kept: KeptVersions) -> None:
        """See `Sink`."""

    def clean_up(self, *, purge: bool = False) -> None:
        """See `Sink`."""
