"""Define the plan from which a worker builds a job: its relation, its fragments, and their actors and positions."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.protocol.cdc import CdcScan
from service.protocol.connector import Connector
from service.protocol.ids import ActorId, Count, EpochField, FragmentId, JobId, RelationId, Vnode
from service.protocol.relation import Relation
from service.protocol.stage import Stage
from service.protocol.vnodes import VNODE_MAX, Runs, vnodes_of


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class FragmentKind(StrEnum):
    """The kind of a fragment, as the catalogs name it.

    A DML fragment, a CDC scan of an external table or a scan of another source writes a table. Scans of the upstreams
    fill a view or a sink, or say how much of its inputs an operator sees.
    """

    DML = "DML"
    STREAM_SCAN = "STREAM_SCAN"
    CDC_SCAN = "CDC_SCAN"
    SOURCE_SCAN = "SOURCE_SCAN"
    OPERATOR = "OPERATOR"


SCANS: Final = frozenset({FragmentKind.STREAM_SCAN, FragmentKind.CDC_SCAN})
"""The kinds that read history. They have progress and limits. A source scan reads what is new, for ever."""


class ScanType(StrEnum):
    """How a scan merges its upstream's history with its live changes.

    Arrangement (`ARRANGEMENT_BACKFILL`) chooses its own number of actors, and each actor has a position per vnode.
    NoShuffle (`BACKFILL`) has the upstream's actors over the same vnodes, and each actor has one position.
    """

    ARRANGEMENT_BACKFILL = "ARRANGEMENT_BACKFILL"
    SNAPSHOT_BACKFILL = "SNAPSHOT_BACKFILL"
    BACKFILL = "BACKFILL"


class PositionState(StrEnum):
    """The state of a position. `NotStarted` is the absence of a position and is never stored."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


_IN_PROGRESS: Final = PositionState.IN_PROGRESS
"""A module constant, because an answer has tens of thousands of positions and each one is checked."""


class VnodePosition(_Value):
    """The backfill position of one vnode.

    While in progress, `key` is the last upstream key read, as Postgres texts in key order (None for NULL). Once
    completed, `key` is None. `rows` counts the upstream rows read so far. Invariant (I11): `rows` never decreases. If
    the store copied rows of many vnodes at once, only their sum is known, and it is divided evenly between them.
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
    """One parallel instance of a fragment: the vnodes it owns and their positions."""

    id: ActorId
    vnodes: Runs
    positions: tuple[VnodePosition, ...] = ()
    rows: Count = 0
    """The upstream rows that the actor of a finished scan has read. Its positions are left out."""

    def completed(self) -> Self:
        """Return the actor of a finished scan with its positions. The rows are divided evenly between its vnodes."""
        owned = vnodes_of(self.vnodes)
        each, more = divmod(self.rows, len(owned))
        done = PositionState.COMPLETED
        positions = (
            VnodePosition(vnode=vnode, state=done, rows=each + (place < more)) for place, vnode in enumerate(owned)
        )
        return self.model_copy(update={"positions": tuple(positions)})


class Prefix(_Value):
    """The prefix of one occurrence of a relation: a scan of it gives no rows, and only says how far it has come.

    The operator at the index `operator` of its job's operators sees so much of its input `alias`, and no more.
    """

    operator: int = Field(ge=0)
    alias: str


Query = Stage | Prefix


class _Fragment(_Value):
    id: FragmentId
    actors: tuple[ActorPlan, ...]


class DmlPlan(_Fragment):
    """The fragment that runs users' statements that write the job's table."""

    kind: Literal[FragmentKind.DML] = FragmentKind.DML


class _HistoryScan(_Fragment):
    """A fragment that reads history. It has positions, progress and a limit.

    `rate_limit` is in rows per second and actor; None is unlimited and 0 is paused. `waiting` is True while the
    fragment waits for its place in the backfill order. `finished` is True if every vnode is completed and the positions
    are left out, so that a plan does not grow with the history of the service.
    """

    rate_limit: int | None = Field(default=None, ge=0)
    waiting: bool = False
    finished: bool = False

    @property
    def positioned(self) -> tuple[ActorPlan, ...]:
        """The actors with all their positions."""
        return tuple(actor.completed() for actor in self.actors) if self.finished else self.actors


class TableScanPlan(_HistoryScan):
    """A scan that sends the result of `query` over `upstream` to its output. Its actors own upstream vnodes.

    The upstream is the driver of a stage, and `lookups` are the other relations that the stage reads. `output` is an
    output of the job; None is the relation that the job is named after. With `sink`, the rows go to an external system
    in the form of that relation, and nothing is stored.
    """

    kind: Literal[FragmentKind.STREAM_SCAN] = FragmentKind.STREAM_SCAN
    upstream: Relation
    query: Query
    scan_type: ScanType
    lookups: tuple[Relation, ...] = ()
    output: RelationId | None = None
    sink: Connector | None = None

    @property
    def reads(self) -> tuple[Relation, ...]:
        """The relations that it reads, the upstream first."""
        return (self.upstream, *self.lookups)

    def each_relation(self, change: Callable[[Relation], Relation]) -> Self:
        """Return the plan with each of its relations changed."""
        changed = {"upstream": change(self.upstream), "lookups": tuple(map(change, self.lookups))}
        return self.model_copy(update=changed)


class SourceScanPlan(_HistoryScan):
    """A scan that makes the job's table follow an external table. Its actors own splits instead of vnodes."""

    kind: Literal[FragmentKind.CDC_SCAN] = FragmentKind.CDC_SCAN
    cdc: CdcScan
    lake: Connector | None = None
    """Where the table's rows lie, and who writes them. None: in the state store."""


class SplitScanPlan(_HistoryScan):
    """A scan that reads the splits of an external system, each from its position on, into the job's table.

    Its actors own splits instead of vnodes. The key of a position means something to the connector alone.
    """

    kind: Literal[FragmentKind.SOURCE_SCAN] = FragmentKind.SOURCE_SCAN
    connector: Connector


class OperatorPlan(_Fragment):
    """A stage that has no history of its own: it follows its inputs from the job's first epoch on.

    It sees the whole of the job's own relations, and of each other input the prefix that a scan of the job has read.
    `inputs` are the relations that it reads, its driver's first. `output` is one of the job's, as of a `TableScanPlan`.
    """

    kind: Literal[FragmentKind.OPERATOR] = FragmentKind.OPERATOR
    query: Stage
    inputs: tuple[Relation, ...]
    output: RelationId | None = None

    @property
    def reads(self) -> tuple[Relation, ...]:
        """The relations that it reads, the driver's first."""
        return self.inputs

    def each_relation(self, change: Callable[[Relation], Relation]) -> Self:
        """Return the plan with each of its relations changed."""
        return self.model_copy(update={"inputs": tuple(map(change, self.inputs))})


HistoryScanPlan = TableScanPlan | SourceScanPlan | SplitScanPlan
FragmentPlan = Annotated[
    DmlPlan | TableScanPlan | SourceScanPlan | SplitScanPlan | OperatorPlan, Field(discriminator="kind")
]


class SnapshotPlan(_Value):
    """The progress of a job in a partial graph: a snapshot job while it is being created, or a job that stays there.

    The job reads its upstreams at `epoch`, which the database graph has committed. `consumed` is the epoch up to which
    it has replayed their change log, None while it still reads the snapshot. Invariant: `epoch <= consumed`.
    """

    epoch: EpochField
    consumed: EpochField | None = None


class JobPlan(_Value):
    """A job: the object of the catalog that it is named after, and its fragments, upstream first.

    `hidden` are relations that only the job itself writes and reads. `snapshot` is None for a job that the database
    graph maintains: from its first epoch on, or since it was created. `caller` created it; empty if that was not
    recorded.
    """

    id: JobId
    relation: Relation
    hidden: tuple[Relation, ...] = ()
    fragments: tuple[FragmentPlan, ...]
    snapshot: SnapshotPlan | None = None
    caller: str = ""

    def each_relation(self, change: Callable[[Relation], Relation]) -> Self:
        """Return the plan with each of its relations changed."""
        fragments = tuple(
            one.each_relation(change) if isinstance(one, TableScanPlan | OperatorPlan) else one
            for one in self.fragments
        )
        hidden = tuple(map(change, self.hidden))
        changed = {"relation": change(self.relation), "hidden": hidden, "fragments": fragments}
        return self.model_copy(update=changed)

    @property
    def outputs(self) -> tuple[Relation, ...]:
        """The stored relations that the job writes, hidden ones first: none, one or several."""
        return (*self.hidden, self.relation) if self.relation.kind.stored else self.hidden

    def written_by(self, fragment: TableScanPlan | OperatorPlan) -> Relation:
        """Return the relation in whose form a scan or an operator gives its rows."""
        return next((one for one in self.hidden if one.id == fragment.output), self.relation)

    @property
    def table_scans(self) -> tuple[TableScanPlan, ...]:
        """The scans of the job's upstream relations."""
        return tuple(one for one in self.fragments if isinstance(one, TableScanPlan))

    @property
    def followed_in_lake(self) -> Connector | None:
        """Where the rows of a followed table lie, if not in the state store."""
        scans = (one for one in self.fragments if isinstance(one, SourceScanPlan))
        return next((one.lake for one in scans), None)

    @property
    def is_logged(self) -> bool:
        """Whether the state store keeps a log of what its relation in a lake does not have yet."""
        return self.followed_in_lake is not None

    @property
    def operators(self) -> tuple[OperatorPlan, ...]:
        """The stages without history of their own, in order."""
        return tuple(one for one in self.fragments if isinstance(one, OperatorPlan))

    @property
    def staged(self) -> tuple[tuple[Stage, TableScanPlan | OperatorPlan], ...]:
        """The stages, in order, each with the fragment that computes it."""
        either = (one for one in self.fragments if isinstance(one, TableScanPlan | OperatorPlan))
        return tuple((one.query, one) for one in either if isinstance(one.query, Stage))

    @property
    def projects(self) -> bool:
        """Whether each row of what it writes is computed from one row of a user's relation."""
        return bool(self.staged) and not self.hidden and all(stage.is_projection for stage, _ in self.staged)

    @property
    def source_scan(self) -> SourceScanPlan | None:
        """The scan of the external table that the job's table follows, or None."""
        return next((one for one in self.fragments if isinstance(one, SourceScanPlan)), None)
