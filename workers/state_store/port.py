"""Table formats as the worker sees them: `VersionedStore`, and what a format may offer besides.

Nothing outside a format may depend on Postgres, so that a lake format can stand beside it one day. The writers of
followed tables are the exception: what they write is SQL (`workers.cdc.apply`, `workers.cdc.pages`).

A row travels with an operation in the column `OPERATION`: `CLOSE` ends the live version at its key, `LIVE` and `PAGE`
insert a new one. Each actor writes at one epoch, in one transaction, which commits only while the store's generation is
the present one (I7).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeGuard

import pyarrow as pa

from service.protocol.dml import DmlLimits, Statement, StatementResult, Unfinished
from service.protocol.ids import Epoch, RelationId, StatementId
from service.protocol.relation import TRAVEL_PREFIX, Relation
from service.protocol.table_format import Capabilities
from service.protocol.vnodes import Runs
from workers.backfill.order import Position
from workers.backfill.positions import Block, PageSize
from workers.backfill.stages import Advances, BoundStage, Windows

if TYPE_CHECKING:
    import psycopg

CONTROL: Final = 0
CLOSE: Final = -1
LIVE: Final = 1
PAGE: Final = 2

OPERATION: Final = f"{TRAVEL_PREFIX}op"
VNODE: Final = "_vnode"


@dataclass(frozen=True, slots=True)
class ArrowPage:
    """Rows of one block in no order: `_vnode`, and the relation's columns in their wire types. See `positions.Page`.

    A page that was computed inside the store has no batches. `copied` is how many rows it has made.
    """

    batches: tuple[pa.RecordBatch, ...]
    rows: Mapping[int, int]
    reached: Mapping[int, Position | None]
    copied: int = 0

    @property
    def size_bytes(self) -> int:
        """Memory that the rows take."""
        return sum(batch.nbytes for batch in self.batches)


PageReader = Callable[[Block, PageSize], ArrowPage]
"""Reads a page of a block."""


@dataclass(frozen=True, slots=True)
class Written:
    """How many versions a transaction inserted, and how many it closed."""

    inserted: int
    closed: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many old and new versions of the upstream a copy of changes read, and what it wrote."""

    read: int
    written: Written


NOTHING: Final = Replayed(0, Written(0, 0))
"""Nothing has changed, and nothing was written."""


class Pages(Protocol):
    """A source of pages of a relation. Implementations are small values that travel to tasks."""

    def read_page(self, relation: Relation, block: Block, *, at: Epoch, size: PageSize) -> ArrowPage:
        """Read a page of a block as of epoch `at`, in the wire types of `workers.state_store.wire.read_schema`."""
        ...


class VersionedStore(Pages, Protocol):
    """A task's access to one format, for one generation. Implementations are small values that travel to the task.

    Rows are read in the wire types of `workers.state_store.wire.read_schema`, and written in those of `to_wire`.
    """

    capabilities: ClassVar[Capabilities]

    def has_rows(self, relation: Relation, count: int, *, at: Epoch) -> bool:
        """Whether a relation has so many rows as of epoch `at`. It looks at no more of them."""
        ...

    def changed(self, relation: Relation, *, after: Epoch, upto: Epoch) -> bool:
        """Whether any version began or ended in `(after, upto]`: a cheap query."""
        ...

    def read_changes(
        self, relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the net changes in `(after, upto]`: old versions (CLOSE) first, then new ones (LIVE)."""
        ...

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """Write rows at `epoch`, fence and commit. CLOSE rows come first. The first columns are `OPERATION`
        and `_vnode`.
        """
        ...


class TooSlowError(Exception):
    """The changes of a stage took longer than others may be made to wait for them.

    With `history`, its pages did so too, because they belong to the same transactions.
    """

    def __init__(self, limit_ms: int, *, together: bool = False, history: bool = False) -> None:
        whose = "its history and changes" if history else "its changes"
        others = " and those of other views together" if together else ""
        advice = "; with streaming_use_snapshot_backfill = true it is created in a graph of its own" if history else ""
        super().__init__(
            f"{whose}{others} took longer than stage_timeout_ms ({limit_ms}) allows, and the statements of others"
            f" waited for them{advice}"
        )
        self.limit_ms, self.together = limit_ms, together

    def with_history(self) -> "TooSlowError":
        """Return the error of a stage that was reading its history in the same epochs."""
        return TooSlowError(self.limit_ms, together=self.together, history=True)


class PlanTooLongError(TooSlowError):
    """Spark made a plan for so long that it was stopped, whatever its jobs are allowed."""

    def __init__(self, seconds: int) -> None:
        Exception.__init__(self, f"Spark planned it for more than {seconds} s, and others waited: make it simpler")
        self.limit_ms, self.together = seconds * 1000, False

    def with_history(self) -> "TooSlowError":
        """Return the error itself: no limit of the job was exceeded."""
        return self


class StageSession(Protocol):
    """One transaction in which a stage is computed, at one epoch."""

    def read_page(self, block: Block, size: PageSize, at: Mapping[RelationId, Epoch]) -> ArrowPage:
        """Compute the rows of a page of the driver's history, with each input as of its epoch in `at`.

        The page has no batches. Rows of groups are added to those of the transaction's other pages.
        """
        ...

    def pass_page(self, relation: Relation, block: Block, size: PageSize, at: Epoch) -> ArrowPage:
        """Return how many rows the next page of an input has as of `at`, and where it ends. Nothing is computed."""
        ...

    def copy_changes(
        self, windows: Windows, changed: Collection[RelationId], advances: Advances = ..., *, anew: bool = False
    ) -> Replayed:
        """Write what follows from the changes in the windows of the `changed` inputs.

        Inputs in `advances` are seen only as far as they were read, and the pages that were passed in this epoch count
        as new. All history of the others is read, so nothing has to be marked. With `anew`, the target may lack what a
        stage gives over nothing: the group or the part that is always there.
        """
        ...

    def add_sums(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add sums of pages that another engine has read: rows of keys and measures. A group may come several times.

        Keys travel as `wire.to_wire` prints them for CSV, measures as decimals.
        """
        ...

    def add_to_groups(self) -> Written:
        """Change the groups by the sums that were added, all of which are differences. All history is read."""
        ...

    def unmerged(self) -> Sequence[int]:
        """Return the vnodes of the target whose partial groups are not merged. None are if there is no log."""
        ...

    def merge(self, vnodes: Sequence[int]) -> int:
        """Insert the groups of some vnodes, each the sum of all its partial groups. Return how many there are.

        All history is read, and each vnode is merged once.
        """
        ...

    def end(self, at: Mapping[RelationId, Epoch], *, whole: bool) -> int:
        """Append the sums of all pages to the log of partial groups, before the transaction ends.

        With `whole`, all history is read now: a part that is the whole input is computed, as of `at`. Return how many
        rows it has.
        """
        ...


class CopyingStore(VersionedStore, Protocol):
    """A format with the capability `store_engine`: it computes queries itself."""

    def staging(
        self, bound: BoundStage, epoch: Epoch, *, allowed_seconds: float | None = None
    ) -> AbstractContextManager[StageSession]:
        """Yield a transaction of a stage that writes at `epoch`. When the context ends, fence and commit.

        Changes may take `allowed_seconds`, None is as long as the generation allows. Then they raise TooSlowError.
        """
        ...


def has_store_engine(store: VersionedStore) -> TypeGuard[CopyingStore]:
    """Whether the format computes queries itself."""
    return store.capabilities.store_engine


@dataclass(frozen=True, slots=True)
class DmlOutcome:
    """Results in the order of the statements, and the change of each relation's number of live keys."""

    results: tuple[StatementResult, ...]
    relations: tuple[RelationId, ...]
    """The relation of each result."""
    key_count_deltas: dict[RelationId, int]
    changed: frozenset[RelationId]
    unfinished: Unfinished = field(default_factory=Unfinished)


class StatementBrokeError(Exception):
    """The connection to the state store was lost while a statement ran, or given up, because it was `too_slow`."""

    def __init__(self, statement: StatementId, error: Exception, *, too_slow: bool = False) -> None:
        why = f"Postgres could not be stopped: {error}" if too_slow else error
        super().__init__(f"the connection to the state store was lost while statement {statement} ran: {why}")
        self.statement, self.too_slow = statement, too_slow


class DmlWriter(Protocol):
    """Runs users' statements on a format with the capability `dml`."""

    def run(self, statements: Sequence[Statement], epoch: Epoch, limits: DmlLimits = ...) -> DmlOutcome:
        """Run statements at `epoch`, fence and commit. A bad statement fails alone.

        Raises StatementBrokeError when the connection is lost during a statement, and the format's own error when the
        generation is over (I7).
        """
        ...


class SqlStore(Protocol):
    """A format whose tables can be written by SQL of Postgres. Tables that are filled from a source are written so."""

    def transaction(
        self, setup: Sequence[str], *, kept: bool = True
    ) -> AbstractContextManager["psycopg.Connection[Any]"]:
        """Yield a session with these settings, in a transaction. When the context ends, fence and commit it, or
        roll back unless `kept`.
        """
        ...

    def read_sql(self, query: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query, which reads only, in a schema of wire types."""
        ...


class Upkeep(Protocol):
    """Work on a format's tables beside the epochs, which costs time but never a row."""

    def wrote(self, relation: RelationId, rows: int) -> None:
        """Count the rows of a durable epoch."""
        ...

    def look(self) -> None:
        """Start what is due, without waiting for it."""
        ...
