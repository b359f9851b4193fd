"""Questions the service puts to a worker outside the barrier sequence: what does a query give, is a view equal to it.

A request never blocks an epoch: the worker answers it on a thread of its own.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from service.protocol.columns import Column
from service.protocol.ids import Bigint, Count, EpochField, GraphId, RequestId, Vnode
from service.protocol.plan import Stateless, VnodePosition
from service.protocol.relation import Relation


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class Analyze(_Value):
    """Have Spark type a query before anything is created. Answered by `Analyzed` or `Rejected`."""

    type: Literal["analyze"] = "analyze"
    id: RequestId
    upstream: Relation
    query: Stateless
    names: tuple[str, ...]
    """The names of the projection's columns, in order."""


class VerifyScan(_Value):
    """One scan of a view. While the job is being created only the backfilled prefix is compared: `positions` (None:
    every vnode is complete).
    """

    upstream: Relation
    query: Stateless
    positions: tuple[VnodePosition, ...] | None = None


class Verify(_Value):
    """Compare a view with its query over its upstreams, read at `epoch`. Answered by `Verified`.

    The view is read at `relation_epoch`: the same epoch, unless the view is still built in a graph of its own.
    """

    type: Literal["verify"] = "verify"
    id: RequestId
    graph: GraphId
    epoch: EpochField
    relation_epoch: EpochField
    relation: Relation
    scans: tuple[VerifyScan, ...]
    differing_keys_max: int = 20


class Analyzed(_Value):
    """The columns a query gives, in order."""

    type: Literal["analyzed"] = "analyzed"
    id: Bigint[RequestId]
    columns: tuple[Column, ...]


class Rejected(_Value):
    """Spark refuses the query, or the worker could not answer. `position` is a 0-based offset into the query, where
    known.
    """

    type: Literal["rejected"] = "rejected"
    id: Bigint[RequestId]
    error: str
    position: int | None = None


class VnodeDifference(_Value):
    """A vnode whose digests differ, with keys (as Postgres texts) that are missing, extra or unequal."""

    vnode: Vnode
    missing: tuple[tuple[str | None, ...], ...] = ()
    extra: tuple[tuple[str | None, ...], ...] = ()
    unequal: tuple[tuple[str | None, ...], ...] = ()


class Engine(StrEnum):
    """Who computes what a view should hold: a worker from the upstream's rows, or the store from the view's text."""

    SPARK = "spark"
    STORE = "store"


class Verified(_Value):
    """The result of a verification. A digest is order-independent: the sum of the rows' 64-bit hashes, in hex, over
    all vnodes.
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
    stale: str | None = None
    """Why what was compared is not current, although it may be equal; null where it is."""
    engine: Engine = Engine.SPARK
    rows_missing: tuple[str, ...] = ()
    """Rows, as Postgres prints them, that the store's answer has and the view has not; at most 20 with the next."""
    rows_extra: tuple[str, ...] = ()


Request = Annotated[Analyze | Verify, Field(discriminator="type")]
REQUEST: TypeAdapter[Analyze | Verify] = TypeAdapter(Request)
Response = Annotated[Analyzed | Verified | Rejected, Field(discriminator="type")]
RESPONSE: TypeAdapter[Analyzed | Verified | Rejected] = TypeAdapter(Response)
