"""Deliver what the tasks of a sink have prepared, once the epoch that prepared it is committed (I14)."""

from collections.abc import Callable
from dataclasses import dataclass

from service.protocol.barrier import Barrier
from service.protocol.ids import Epoch, Generation
from workers.connectors.port import KeptVersions, Sink, SinkWriter


@dataclass
class Delivery:
    """The deliveries of a sink in one generation.

    A barrier comes after its graph has committed the epoch before, because the graph of such a sink is its own.
    """

    make: Callable[[Generation], Sink]
    sink: Sink | None = None
    delivered_at: float = 0.0
    upto: int = 0
    """The last epoch of which the target has everything, as far as this generation knows."""

    @property
    def writer(self) -> SinkWriter:
        """The receiver of rows in tasks. Deliveries have begun."""
        assert self.sink is not None
        return self.sink.writer

    def run(self, barrier: Barrier, now: float, *, awaited: Epoch | None) -> int | None:
        """Deliver what is due, at once if an epoch is `awaited` that the target does not have yet. Return the version
        that the target has then, if it may be another one. Raises the target's errors.
        """
        if self.sink is None:
            sink = self.make(barrier.generation)
            version = sink.begin(barrier.prev)
            self.sink = sink
        elif now - self.delivered_at >= self.sink.commit_seconds or not self.has(awaited):
            version = self.sink.commit(barrier.prev)
        else:
            return None
        self.delivered_at, self.upto = now, barrier.prev
        return version

    def keep_up(self, kept: KeptVersions) -> None:
        """Do what keeps the target in shape. `kept` returns the versions that epochs may still read."""
        if self.sink is not None:
            self.sink.keep_up(kept)

    def has(self, epoch: Epoch | None) -> bool:
        """Whether the target has everything of an epoch. None: no epoch is asked for."""
        return epoch is None or epoch <= self.upto
