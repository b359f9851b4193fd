"""Carry the rows of a followed table from its log into its table in a lake, beside the epochs.

A thread for each table does it, so no barrier waits for a storage. It takes what is committed, once in a commit
interval, and removes from the log what the table has. An error means that the storage is away, or that a newer
generation carries: it begins anew, after a while. Next: `workers.connectors.delta_carried`, `workers.cdc.changes_log`.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

import structlog
from pyspark.sql import SparkSession

from service.protocol.ids import Epoch
from service.protocol.relation import Relation
from service.protocol.vnodes import Runs
from workers.cdc import changes_log
from workers.cdc.apply import applying
from workers.connectors.in_place import kept_versions
from workers.connectors.limited import CALLER
from workers.connectors.port import Carried, Consumed, RefusedTableError
from workers.engines.carrying import Log, prepare
from workers.state_store.port import SqlStore

log = structlog.get_logger(__name__)
POOL: Final = "carriers"
"""The pool of Spark's scheduler. It gets its part of the task slots, and no more."""
RETRY_SECONDS: Final = 5.0
"""How long it waits after an error."""
_NONE: Final = Epoch(0)
_SOON: Final = 0.2
"""How long it waits if somebody else does."""
BACKLOG_ROWS: Final = 1_000_000
"""With so many rows in the log no history is read. Live changes are appended whatever there is (I5)."""


@dataclass
class Carrier:
    """The carrier of one table in one generation."""

    spark: SparkSession
    store: SqlStore
    relation: Relation
    make: Callable[[], Carried]
    caller: str
    had: Consumed | None = None
    """What the table in the lake has. None until it was reached."""
    delivered: Epoch = _NONE
    """The epoch up to which it has everything, as far as this generation knows."""
    backlog: int = 0
    """About how many rows wait."""
    away: str | None = None
    """Why nothing can be carried."""
    broken: str | None = None
    """Why the table cannot be carried any further, until it is emptied."""
    hurried: bool = False
    """Whether somebody waits for the next commit."""
    _committed: Epoch = _NONE
    _emptied: Epoch = _NONE
    """The epoch at which a reload empties the table."""
    _table: Carried | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin to carry."""
        threading.Thread(target=self._run, daemon=True, name=f"carrier-{self.relation.id}").start()

    def end(self) -> None:
        """Carry no more. A commit that is under way is refused once a newer generation has begun."""
        self._ended.set()

    def committed(self, epoch: Epoch) -> None:
        """Take note that an epoch is committed."""
        self._committed = epoch

    def emptied(self, epoch: Epoch) -> None:
        """Take note that a reload empties the table at an epoch: what is in it does not matter any more."""
        self._emptied, self.broken = epoch, None

    def has(self, epoch: Epoch) -> bool:
        """Whether the table in the lake has all up to an epoch. If not, it is carried at once."""
        self.hurried = self.delivered < epoch
        return not self.hurried

    @property
    def full(self) -> bool:
        """Whether so much waits that no history may come."""
        return self.backlog >= BACKLOG_ROWS

    def _run(self) -> None:
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", POOL)
        # A storage that answers slowly holds up neither a sink nor half of the other tables.
        CALLER.set(f"{self.caller} carries {self.relation.id % 2}")
        while not self._ended.wait(self._pause()):
            try:
                self.carry()
            except RefusedTableError as error:
                self.broken, self._table = _in_words(error), None
            except Exception as error:  # noqa: BLE001 - tried again
                if self.away is None and not self._ended.is_set():
                    log.warning("carrier.away", relation=self.relation.name, error=str(error))
                self.away, self._table = _in_words(error), None
            else:
                self.away = None

    def _pause(self) -> float:
        if self.away is not None:
            return RETRY_SECONDS
        seconds = 0.0 if self._table is None else self._table.commit_seconds
        return min(seconds, _SOON) if self.hurried or self.backlog >= BACKLOG_ROWS // 4 else seconds

    def carry(self) -> None:
        """Carry what is committed. Raises the errors of Spark, the state store and the storage."""
        if self._table is None:
            table = self.make()
            self.had = table.begin()
            self._table = table
        upto = self._committed
        if self.broken is None and upto > max(self.delivered, self._emptied - 1):
            self._carry(self._table, upto)
            self.delivered = upto

    def _carry(self, table: Carried, upto: Epoch) -> None:
        had, relation = self.had, self.relation
        assert had is not None
        with applying(self.store) as writing:
            self.backlog = writing.waiting(relation.id)
            place = writing.truncated(relation.id, after=had.changes, upto=upto)
        if not self.backlog:
            return  # a job of Spark for nothing would be one for each idle table in each interval
        prepared = self._prepare(table, had, upto, place)
        if prepared or place is not None:
            self.had = table.commit(had, upto, prepared, truncated=place is not None)
        with applying(self.store) as writing:
            self.backlog = writing.trim(relation.id, upto)
        table.keep_up(partial(kept_versions, self.store, relation))

    def _prepare(self, table: Carried, had: Consumed, upto: Epoch, place: int | None) -> int:
        """Have tasks prepare what the log has since `had`, or since a truncation at a `place`. Return how many rows."""
        relation = self.relation
        whole: Runs = ((0, relation.vnode_count - 1),)
        parts = _parts(relation, self.spark.sparkContext.defaultParallelism)
        if place is not None:
            queries = [changes_log.rows_since(relation, place, upto=upto, runs=one) for one in parts]
        else:
            queries = [changes_log.pages_query(relation, after=had.pages, upto=upto, runs=one) for one in parts]
            queries.append(changes_log.changes_query(relation, after=had.changes, upto=upto, runs=whole))
        return prepare(self.spark, Log(self.store, relation, queries), table.writer, upto)


def _parts(relation: Relation, count: int) -> list[Runs]:
    """Return the vnodes of each task."""
    bounds = [relation.vnode_count * place // count for place in range(count + 1)]
    return [((first, last - 1),) for first, last in pairwise(bounds) if first < last]


def _in_words(error: Exception) -> str:
    lines = str(error).splitlines()
    return next((line for line in lines if line.strip()), type(error).__name__)[:500]
