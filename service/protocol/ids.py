"""Identities. They are never reused: a restarted worker is a new worker, a rebuilt job has a new id."""

from typing import Annotated, Final, NewType, TypeVar

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

RelationId = NewType("RelationId", int)
JobId = NewType("JobId", int)
FragmentId = NewType("FragmentId", int)
ActorId = NewType("ActorId", int)
GraphId = NewType("GraphId", int)
CommandId = NewType("CommandId", int)
StatementId = NewType("StatementId", int)
RequestId = NewType("RequestId", int)
SourceId = NewType("SourceId", int)
"""An external database: a source has a name among the relations, and its id is one of theirs."""
WorkerId = NewType("WorkerId", str)
"""A UUID made by the worker process when it starts."""

Generation = NewType("Generation", int)
"""Grows each time a graph is (re)started; fences everything an older one still tries to write (I7)."""
Term = NewType("Term", int)
"""Grows each time the leader lease changes hands (I7)."""
Epoch = NewType("Epoch", int)
"""`unix_ms << 16`, strictly increasing; the version number of every stored row."""
Vnode = NewType("Vnode", int)

DATABASE_GRAPH: Final = GraphId(1)
"""The graph every created relation belongs to. Partial graphs of snapshot jobs get ids of their own."""

BIGINT_MAX: Final = 9223372036854775807
"""Ids and epochs are Postgres bigints; what does not fit names nothing."""

_Id = TypeVar("_Id", bound=int)
Bigint = Annotated[_Id, Field(ge=0, le=BIGINT_MAX)]
"""An id or number as another process sends it: one that cannot be stored is refused with its message, before anything
is decided by it.
"""
COUNT_MAX: Final = 1 << 47
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
"""How many of something a message tells: the sum over all actors there may be still fits a bigint."""


def _epoch(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        msg = "an epoch is a decimal text or an integer"
        raise ValueError(msg)  # noqa: TRY004 - pydantic reports a ValueError; a TypeError would pass through it
    epoch = int(value)
    if not 0 <= epoch <= BIGINT_MAX:
        msg = "an epoch is a non-negative 64-bit integer"
        raise ValueError(msg)
    return epoch


# JSON numbers lose precision above 2^53 in most readers, and every epoch is above it: epochs travel as strings.
EpochField = Annotated[
    Epoch,
    BeforeValidator(_epoch),
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]+$"}),
]
