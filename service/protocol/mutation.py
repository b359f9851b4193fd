"""What a barrier may carry: at most one mutation, acting before all else of the epoch that carries it (I4)."""

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from service.protocol.ids import BIGINT_MAX, FragmentId, JobId
from service.protocol.plan import ActorPlan, JobPlan

RATE_LIMIT_MAX: Final = 2_147_483_647
"""A limit is a Postgres integer, as in the reference; no worker reads that fast."""
_ID: Final = Field(ge=0, le=BIGINT_MAX)
RateLimit = Annotated[int, Field(ge=0, le=RATE_LIMIT_MAX, strict=True)]
"""Rows per second and actor; 0 is paused."""


class _Mutation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pause(_Mutation):
    """From this epoch on not one snapshot row is read; live rows and barriers go on."""

    type: Literal["pause"] = "pause"


class Resume(_Mutation):
    """Take back a pause; every scan continues at the position it held."""

    type: Literal["resume"] = "resume"


class Throttle(_Mutation):
    """Replace rate limits: fragment -> rows per second and actor; None is unlimited, 0 pauses the fragment.

    Those of the fragments in `auto` are adapted to the load from there on; those of the others stay as they are given.
    """

    type: Literal["throttle"] = "throttle"
    fragments: dict[Annotated[FragmentId, _ID], RateLimit | None]
    auto: tuple[Annotated[FragmentId, _ID], ...] = ()

    @model_validator(mode="after")
    def _adapted_from_a_number(self) -> Self:
        if any(self.fragments.get(one) is None for one in self.auto):
            raise ValueError("a limit is adapted from a number: `auto` names fragments that have one")
        return self


class StartFragmentBackfill(_Mutation):
    """Release fragments that wait for their place in the backfill order."""

    type: Literal["start_fragment_backfill"] = "start_fragment_backfill"
    fragments: tuple[Annotated[FragmentId, _ID], ...]


class Add(_Mutation):
    """Build the actors of jobs. On an initial barrier: every job of the graph, and whether the graph is paused."""

    type: Literal["add"] = "add"
    jobs: tuple[JobPlan, ...]
    paused: bool = False


class Stop(_Mutation):
    """Forget jobs: their actors do nothing from this epoch on, and their tables are dropped after it is committed
    (I9).
    """

    type: Literal["stop"] = "stop"
    jobs: tuple[Annotated[JobId, _ID], ...]


class Update(_Mutation):
    """Replace the actors of fragments: fragment -> its new actors, which own the vnodes that its old ones owned (I11).

    Positions are not in it: the worker holds newer ones than are stored, and moves them with their vnodes.
    """

    type: Literal["update"] = "update"
    fragments: dict[Annotated[FragmentId, _ID], tuple[ActorPlan, ...]]


Mutation = Annotated[
    Pause | Resume | Throttle | StartFragmentBackfill | Add | Stop | Update, Field(discriminator="type")
]
MUTATION: TypeAdapter[Pause | Resume | Throttle | StartFragmentBackfill | Add | Stop | Update] = TypeAdapter(Mutation)
