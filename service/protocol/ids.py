"""Define the ids. An id is never reused: a restarted worker is a new worker, and a rebuilt job has a new id."""

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
"""The id of an external database. Sources and relations share one set of names and ids."""
WorkerId = NewType("WorkerId", str)
"""A UUID that the worker process generates when it starts."""

Generation = NewType("Generation", int)
"""Grows each time a graph starts again. It fences every write of an older generation (I7)."""
Term = NewType("Term", int)
"""Grows each time the leader lease changes hands (I7)."""
Epoch = NewType("Epoch", int)
"""`unix_ms << 16`, strictly increasing; the version number of every stored row."""
Vnode = NewType("Vnode", int)

DATABASE_GRAPH: Final = GraphId(1)
"""The graph of every created relation. A partial graph of a snapshot job has an id of its own."""

BIGINT_MAX: Final = 9223372036854775807
"""Ids and epochs are Postgres bigints, so a larger number identifies nothing."""

_Id = TypeVar("_Id", bound=int)
Bigint = Annotated[_Id, Field(ge=0, le=BIGINT_MAX)]
"""An id or number from another process.

Validation refuses the whole message if the number cannot be stored, before the service decides anything by it.
"""
COUNT_MAX: Final = 1 << 47
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
"""A count in a message. The limit is low enough that the sum over all possible actors fits a bigint."""


def _epoch(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        msg = "an epoch is a decimal text or an integer"
        raise ValueError(msg)  # noqa: TRY004 - pydantic reports a ValueError; a TypeError would pass through it
    epoch = int(value)
    if not 0 <= epoch <= BIGINT_MAX:
        msg = "an epoch is a non-negative 64-bit integer"
        raise ValueError(msg)
    return epoch


# Epochs travel as strings, because every epoch is above 2^53 and most JSON readers lose precision there.
EpochField = Annotated[
    Epoch,
    BeforeValidator(_epoch),
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]+$"}),
]
