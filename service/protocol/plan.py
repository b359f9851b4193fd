"""What a worker needs to build a job: its relation, its fragments, their actors and positions."""

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.protocol.cdc import CdcScan
from service.protocol.columns import ComputedColumn
from service.protocol.ids import ActorId, Count, EpochField, FragmentId, JobId, Vnode
from service.protocol.relation import Relation
from service.protocol.vnodes import VNODE_MAX, Runs


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class FragmentKind(StrEnum):
    """What a fragment of a job does, by its name in catalogs. A table is written by its DML fragment, or by a CDC scan
    that follows an external table; a view is filled by the scans of its upstreams.
    """

    DML = "DML"
    STREAM_SCAN = "STREAM_SCAN"
    CDC_SCAN = "CDC_SCAN"


SCANS: Final = frozenset({FragmentKind.STREAM_SCAN, FragmentKind.CDC_SCAN})
"""Those that read history: they have progress, and limits."""


class ScanType(StrEnum):
    """How a scan merges its upstream's history with its live changes.

    Arrangement has actors of its own number, each with a position for each of its vnodes. `BACKFILL` is NoShuffle: as
    many actors as the upstream has, over the same vnodes, each with one position.
    """

    ARRANGEMENT_BACKFILL = "ARRANGEMENT_BACKFILL"
    SNAPSHOT_BACKFILL = "SNAPSHOT_BACKFILL"
    BACKFILL = "BACKFILL"


class PositionState(StrEnum):
    """`NotStarted` is the absence of a position; it is never stored."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


_IN_PROGRESS: Final = PositionState.IN_PROGRESS
"""Looked up once: an answer has tens of thousands of positions, each of which is checked."""


class VnodePosition(_Value):
    """How far one vnode has been backfilled.

    `key` holds the last consumed upstream key as Postgres texts in key order (None for NULL) while in progress and is
    None once completed; `rows` counts the upstream rows read so far. Invariant (I11): `rows` never decreases. Of rows
    that were copied inside the store, many vnodes at once, only the sum was counted: they are shared out evenly.
    """

    vnode: Annotated[Vnode, Field(ge=0, le=VNODE_MAX)]
    state: PositionState
    key: tuple[str | None, ...] | None = None
    rows: Count

    @model_validator(mode="after")
    def _key_while_in_progress(self) -> Self:
        assert (self.state is _IN_PROGRESS) == (self.key is not None), self
        return self


class ActorPlan(_Value):
    """One parallel instance of a fragment: the vnodes it owns and where each stands."""

    id: ActorId
    vnodes: Runs
    positions: tuple[VnodePosition, ...] = ()


class Pushdown(_Value):
    """A query in the state store's own SQL, where it means there what it means in Spark, to the last bit.

    Pages of history are then copied inside the state store. `columns` says of every column of the target relation, in
    its order, what goes there: the upstream's column of that name, a number (a union's branch), or NULL.
    """

    columns: tuple[str | int | None, ...]
    predicate: str | None = None


class Stateless(_Value):
    """Project and filter over one upstream, in Spark SQL over the upstream's own column names.

    `projection` gives every column of the target relation, in its order, hidden ones included. `predicate` is None
    where the query has no WHERE. `pushdown` is None where only Spark can say what a row becomes.
    """

    projection: tuple[str, ...]
    predicate: str | None = None
    pushdown: Pushdown | None = None
    computed: tuple[ComputedColumn, ...] = ()
    """What Spark cannot compute exactly (I12): the store does, and projection and predicate read the result."""

    def reading(self, upstream: Relation) -> Relation:
        """Return the upstream with the columns that are read for this query."""
        return upstream.model_copy(update={"columns": (*upstream.columns, *self.computed)})


class _Fragment(_Value):
    id: FragmentId
    actors: tuple[ActorPlan, ...]


class DmlPlan(_Fragment):
    """Runs the statements of users that write the job's table."""

    kind: Literal[FragmentKind.DML] = FragmentKind.DML


class _HistoryScan(_Fragment):
    """A fragment that reads history: it has positions, progress and a limit.

    `rate_limit` is in rows per second and actor; None is unlimited and 0 is paused. `waiting` says that the fragment
    waits for its place in the backfill order.
    """

    rate_limit: int | None = Field(default=None, ge=0)
    waiting: bool = False


class TableScanPlan(_HistoryScan):
    """Brings what `query` makes of `upstream` to the job's relation. Its actors own vnodes of the upstream."""

    kind: Literal[FragmentKind.STREAM_SCAN] = FragmentKind.STREAM_SCAN
    upstream: Relation
    query: Stateless
    scan_type: ScanType


class SourceScanPlan(_HistoryScan):
    """Has the job's table follow an external one. Its actors own splits where others own vnodes."""

    kind: Literal[FragmentKind.CDC_SCAN] = FragmentKind.CDC_SCAN
    cdc: CdcScan


HistoryScanPlan = TableScanPlan | SourceScanPlan
FragmentPlan = Annotated[DmlPlan | TableScanPlan | SourceScanPlan, Field(discriminator="kind")]


class SnapshotPlan(_Value):
    """Where a snapshot job stands while it is being created.

    Its history is the upstreams at `epoch`, which the database graph has committed. `consumed` is the epoch up to which
    their change log was replayed as well, None while the snapshot is still read. Invariant: `epoch <= consumed`.
    """

    epoch: EpochField
    consumed: EpochField | None = None


class JobPlan(_Value):
    """A job: the relation it creates or maintains and its fragments, upstream first. `snapshot` is None for a job that
    is maintained in the database graph from its first epoch on, and once it is created.
    """

    id: JobId
    relation: Relation
    fragments: tuple[FragmentPlan, ...]
    snapshot: SnapshotPlan | None = None

    @property
    def table_scans(self) -> tuple[TableScanPlan, ...]:
        """The scans of the job's upstreams."""
        return tuple(one for one in self.fragments if isinstance(one, TableScanPlan))

    @property
    def source_scan(self) -> SourceScanPlan | None:
        """What the job's table follows, if it follows anything."""
        return next((one for one in self.fragments if isinstance(one, SourceScanPlan)), None)
