"""Deliver what the tasks of a sink have prepared, once the epoch that prepared it is committed (I14)."""

from collections.abc import Callable
from dataclasses import dataclass

from service.protocol.barrier import Barrier
from service.protocol.ids import Generation
from workers.connectors.port import Sink, SinkWriter


@dataclass
class Delivery:
    """The deliveries of a sink in one generation.

    A barrier comes after its graph has committed the epoch before, because the graph of such a sink is its own.
    """

    make: Callable[[Generation], Sink]
    sink: Sink | None = None
    delivered_at: float = 0.0

    @property
    def writer(self) -> SinkWriter:
        """The receiver of rows in tasks. Deliveries have begun."""
        assert self.sink is not None
        return self.sink.writer

    def run(self, barrier: Barrier, now: float) -> None:
        """Deliver what is due. Raises the target's errors."""
        if self.sink is None:
            sink = self.make(barrier.generation)
            sink.begin(barrier.prev)
            self.sink = sink
        elif now - self.delivered_at >= self.sink.commit_seconds:
            self.sink.commit(barrier.prev)
        else:
            return
        self.delivered_at = now
