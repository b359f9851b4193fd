"""Define the requests that the service sends to a worker outside the barriers: verify a view, claim a sink's target,
look at a table.

A request never blocks an epoch, because the worker answers it on a separate thread.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from service.protocol.connector import Connector
from service.protocol.ids import Bigint, Count, Epoch, EpochField, GraphId, RelationId, RequestId, Vnode
from service.protocol.plan import VnodePosition
from service.protocol.relation import Relation
from service.protocol.stage import Engine, Stage


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class VerifyStage(_Value):
    """One stage of a view: `relations` are its inputs, `target` is what it writes.

    While the job is being created, a projection gives the prefix that `positions` has backfilled. None is all of it.
    """

    stage: Stage
    target: Relation
    relations: tuple[Relation, ...]
    positions: tuple[VnodePosition, ...] | None = None


class _Computed(_Value):
    """A query whose last stages write `relation`. Stages come in order. Only tables and views are read: what the stages
    before them give is computed again.
    """

    id: RequestId
    graph: GraphId
    relation: Relation
    stages: tuple[VerifyStage, ...]


class Verify(_Computed):
    """Compare a view with its query over its upstreams at `epoch`. The worker answers with `Verified`.

    It reads the view at `relation_epoch`. The two epochs differ only while a partial graph still builds the view. The
    service waits for `timeout_ms`.
    """

    type: Literal["verify"] = "verify"
    epoch: EpochField
    relation_epoch: EpochField
    differing_keys_max: int = 20
    timeout_ms: int = 1_800_000

    @property
    def gathers(self) -> bool:
        """Whether rows of several keys come together, so that no row's size bounds the memory that this takes."""
        return not all(one.stage.is_projection for one in self.stages)

    def at(self, _: RelationId) -> Epoch:
        """Return the epoch as of which a relation is read."""
        return self.epoch


class Select(_Computed):
    """Compute a query over relations of which some lie in a lake. The worker answers with `Selected`.

    Each relation is read as of its epoch in `epochs`. The worker rejects a result of more than `rows_max` rows unless
    it may leave some out (`any_rows`), or of more than `bytes_max` bytes, and stops after `timeout_ms`.
    """

    type: Literal["select"] = "select"
    epochs: dict[RelationId, EpochField]
    rows_max: int
    any_rows: bool = False
    bytes_max: int
    timeout_ms: int

    def at(self, relation: RelationId) -> Epoch:
        """Return the epoch as of which a relation is read."""
        return self.epochs[relation]


class _Target(_Value):
    id: RequestId
    connector: Connector
    relation: Relation


class ClaimTarget(_Target):
    """Make the target of a sink ready, or say why it cannot be. The worker answers with `Done`."""

    type: Literal["claim_target"] = "claim_target"
    roots: tuple[str, ...] | None = None
    """The permitted places. None: any. The worker follows links, which only it can see."""


class ReleaseTarget(_Target):
    """Remove what was prepared for the target of a sink that was dropped. The worker answers with `Done`."""

    type: Literal["release_target"] = "release_target"
    purge: bool = False
    """Whether to remove the table as well, with all its files."""


class DescribeTable(_Value):
    """Look at a table that shall be read in place. The worker answers with `TableDescribed`."""

    type: Literal["describe_table"] = "describe_table"
    id: RequestId
    connector: Connector
    roots: tuple[str, ...] | None = None
    """As in `ClaimTarget`."""


class CheckPlace(_Value):
    """Look at a place where tables lie that shall be read in place. The worker answers with `Done`."""

    type: Literal["check_place"] = "check_place"
    id: RequestId
    connector: Connector
    roots: tuple[str, ...] | None = None
    """As in `ClaimTarget`."""


class TableDescribed(_Value):
    """The newest version of a table, its schema in the words of its format, and about how many rows it has."""

    type: Literal["table_described"] = "table_described"
    id: Bigint[RequestId]
    version: Count
    table_schema: str
    rows: Count


class Done(_Value):
    """The request was carried out."""

    type: Literal["done"] = "done"
    id: Bigint[RequestId]


class Rejected(_Value):
    """The worker could not answer. `again`: the same question may be answered later."""

    type: Literal["rejected"] = "rejected"
    id: Bigint[RequestId]
    error: str
    again: bool = False


class VnodeDifference(_Value):
    """A vnode whose digests differ, with keys (as Postgres texts) that are missing, extra or unequal."""

    vnode: Vnode
    missing: tuple[tuple[str | None, ...], ...] = ()
    extra: tuple[tuple[str | None, ...], ...] = ()
    unequal: tuple[tuple[str | None, ...], ...] = ()


class Verified(_Value):
    """The result of a verification.

    A digest does not depend on the order of rows: it is the sum of the hashes of all rows, in hex. Digests of different
    engines cannot be compared.
    """

    type: Literal["verified"] = "verified"
    id: Bigint[RequestId]
    epoch: EpochField
    equal: bool
    rows: Count
    expected_rows: Count
    digest: str
    expected_digest: str
    differences: tuple[VnodeDifference, ...] = ()
    keys_differing: Count | None = None
    """How many keys differ, of which `differences` names some; null where they are not counted."""
    stale: str | None = None
    """Why the compared rows are not current, even if they are equal; null if they are current."""
    engine: Engine = Engine.SPARK
    rows_missing: tuple[str, ...] = ()
    """Rows, as Postgres prints them, in the store's answer but not in the view. At most 20 together
    with `rows_extra`.
    """
    rows_extra: tuple[str, ...] = ()


class Selected(_Value):
    """The rows of a query. Each value is a text that Postgres reads, an array a JSON array of such texts."""

    type: Literal["selected"] = "selected"
    id: Bigint[RequestId]
    rows: tuple[tuple[str | None, ...], ...]


Request = Verify | Select | ClaimTarget | ReleaseTarget | DescribeTable | CheckPlace
REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="type")])
Response = Verified | Selected | Done | TableDescribed | Rejected
RESPONSE: TypeAdapter[Response] = TypeAdapter(Annotated[Response, Field(discriminator="type")])
