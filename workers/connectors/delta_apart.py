"""Sinks and followed tables whose Delta tables are read and written in processes apart from the worker (I13).

Every program that may write into the folder of such a table can give it a log that takes any memory and any time. Each
caller has a process with little memory. What needs more has another one, with the caller's share of half of the
machine, one at a time. Either may be killed at any moment, as the worker may.

Next: `workers.connectors.deltalake` and `workers.connectors.delta_carried`, whose methods are called there.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from subprocess import TimeoutExpired
from typing import Final, ParamSpec, TypeVar

import pyarrow as pa

from service.protocol.ids import Epoch, Generation
from service.protocol.relation import Relation
from workers.connectors import deltalake
from workers.connectors.delta_carried import CarriedTable
from workers.connectors.delta_shape import looked
from workers.connectors.delta_upkeep import keep_up
from workers.connectors.delta_writer import DeltaWriter
from workers.connectors.deltalake import DeltaSink
from workers.connectors.limited import CALLER, EndedError, MemoryShares, Standing, limited
from workers.connectors.port import Consumed, KeptVersions, RefusedTableError
from workers.memory import half_of_memory

P = ParamSpec("P")
T = TypeVar("T")
MEMORY: Final = 1 << 30
_SECONDS: Final = 30.0
"""A process that lacks memory may stand still for ever."""
SHARES: Final = MemoryShares(half_of_memory())
"""The memory of larger processes. Eight at a time took all that a machine had."""
_SECONDS_MAX: Final = 3600.0
"""Nothing else ends the merge of a sink that was dropped."""
_CLEANED_SECONDS: Final = 45.0
_PURGED_SECONDS: Final = 600.0
"""Cleaning up after a dropped sink takes a thread that answers the service, and no caller waits longer for it."""


class _Processes:
    """The standing process of each caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of = defaultdict[str, Standing](lambda: Standing(MEMORY))

    def of(self, caller: str) -> Standing:
        with self._lock:
            for other in [other for other, one in self._of.items() if one.over]:
                # Its process had no call for long, and there may never be another one.
                self._of.pop(other).end()
            return self._of[caller]


_STANDING: Final = _Processes()
_LARGE: Final = dict[str, float]()
"""The tables for which that process was too small, and until when that is remembered."""
_LARGE_SECONDS: Final = 600.0


def apart(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a call in the process of the caller for which this thread works, and return its result.

    Raises its errors, RefusedTableError if it takes too much memory, and OSError if it takes too much time.
    """
    return _told(lambda: _STANDING.of(CALLER.get()).call(_SECONDS, call, *args, **kwargs))


def _told(call: Callable[[], T]) -> T:
    try:
        return call()
    except MemoryError:
        raise RefusedTableError(f"the Delta table takes more than {MEMORY >> 20} MB of memory to read") from None
    except TimeoutExpired:
        raise OSError(f"the Delta table takes more than {_SECONDS:.0f} s to read") from None


def at_large(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a call in a process that has the memory which the caller may have.

    Raises its errors, RefusedTableError if that is too little, and OSError while others have a part of it.
    """
    with SHARES.share(CALLER.get()) as memory:
        try:
            return limited(memory, _SECONDS_MAX, call, *args, **kwargs)
        except TimeoutExpired:
            raise RefusedTableError(f"a commit takes more than {_SECONDS_MAX:.0f} s") from None
        except MemoryError:
            if memory < SHARES.most:
                raise OSError("the merges of others leave too little memory for a commit of changes") from None
            raise RefusedTableError(
                f"a commit of changes takes more than {memory >> 20} MB of memory: with partitions (partition_by)"
                " it touches fewer rows"
            ) from None


def _run(location: str, call: Callable[[], T], again: Callable[[], T] | None = None) -> T:
    """Make a call in the process that its table needs. It can be repeated, or there is another one to make `again`."""
    if _LARGE.get(location, 0.0) <= _monotonic():
        try:
            return _STANDING.of(CALLER.get()).call(_SECONDS, call)
        except (MemoryError, TimeoutExpired):
            _LARGE[location] = _monotonic() + _LARGE_SECONDS
            return at_large(again or call)
    return at_large(call)


def claim(options: Mapping[str, str], relation: Relation) -> None:
    """See `deltalake.claim`."""
    try:
        looked(options["location"], partial(deltalake.claim, options, relation))
    except (OSError, RefusedTableError) as error:
        raise ValueError(f"{options['location']} cannot be used by the worker: {error}") from error


class _Apart:
    """The common part of both kinds of tables."""

    def __init__(self, sink: DeltaSink) -> None:
        self._sink = sink

    @property
    def commit_seconds(self) -> float:
        """See `Sink`."""
        return self._sink.commit_seconds

    @property
    def writer(self) -> DeltaWriter:
        """See `Sink`."""
        return self._sink.writer

    def keep_up(self, kept: KeptVersions) -> None:
        """See `Sink`."""
        keep_up(self._sink.options, kept, self._run, at_large)

    def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a call that can be repeated in the process that the table needs."""
        return _run(self._sink.options.location, partial(call, *args, **kwargs))


class ApartSink(_Apart):
    """A `Sink` into a Delta table."""

    @classmethod
    def of(cls, options: Mapping[str, str], relation: Relation, generation: Generation) -> "ApartSink":
        """Return the sink. The service has checked the options."""
        return cls(DeltaSink.of(options, relation, generation))

    def begin(self, committed: Epoch) -> int | None:
        """See `Sink`."""
        return self._run(DeltaSink.begin, self._sink, committed)

    def commit(self, upto: Epoch) -> int | None:
        """See `Sink`."""
        commit = partial(DeltaSink.commit, self._sink, upto)
        return _run(self._sink.options.location, commit, partial(commit, again=True))

    def pending(self, upto: Epoch) -> tuple[int, pa.Table | None]:
        """See `Sink`."""
        # Verifications of all callers ask for it: none waits for the process of another.
        return _told(lambda: limited(MEMORY, _SECONDS, DeltaSink.pending, self._sink, upto))

    def clean_up(self, *, purge: bool = False) -> None:
        """See `Sink`."""
        seconds = _PURGED_SECONDS if purge else _CLEANED_SECONDS
        try:
            limited(MEMORY, seconds, DeltaSink.clean_up, self._sink, purge=purge)
        except (TimeoutExpired, MemoryError, EndedError) as error:
            raise OSError(f"{self._sink.options.location} cannot be cleaned up: {error}") from None


class ApartCarried(_Apart):
    """A `Carried`: the Delta table of a followed table."""

    def __init__(self, carried: CarriedTable) -> None:
        super().__init__(carried.sink)
        self._carried = carried

    @classmethod
    def of(cls, options: Mapping[str, str], relation: Relation, generation: Generation) -> "ApartCarried":
        """Return the table. The service has checked the options."""
        return cls(CarriedTable.of(options, relation, generation))

    def begin(self) -> Consumed:
        """See `Carried`."""
        return self._run(CarriedTable.begin, self._carried)

    def commit(self, before: Consumed, upto: Epoch, prepared: int, *, truncated: bool) -> Consumed:
        """See `Carried`."""
        return self._run(CarriedTable.commit, self._carried, before, upto, prepared, truncated=truncated)


def _monotonic() -> float:
    return time.monotonic()  # noqa: TID251 - how long something is remembered
