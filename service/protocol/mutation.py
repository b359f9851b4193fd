"""Define the mutations: a barrier carries at most one, and it acts before anything else of its epoch (I4)."""

from collections.abc import Hashable, Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    model_serializer,
    model_validator,
)

from service.protocol.cdc import CdcScan
from service.protocol.first_fault import first_fault
from service.protocol.ids import BIGINT_MAX, FragmentId, JobId, RelationId
from service.protocol.plan import ActorPlan, JobPlan
from service.protocol.relation import Relation, RelationKind

RATE_LIMIT_MAX: Final = 2_147_483_647
"""A limit is a Postgres integer, as in RisingWave; no worker reads faster."""
_ID: Final = Field(ge=0, le=BIGINT_MAX)
RateLimit = Annotated[int, Field(ge=0, le=RATE_LIMIT_MAX, strict=True)]
"""Rows per second and actor; 0 pauses."""
T = TypeVar("T", bound=Hashable)


def _once(ids: tuple[T, ...]) -> tuple[T, ...]:
    """Return each id once. A mutation is therefore no longer than what exists, whatever a caller sends."""
    return tuple(dict.fromkeys(ids))


_Scans = Annotated[tuple[Annotated[FragmentId, _ID], ...], FailFast(), AfterValidator(_once)]
_Limits = dict[Annotated[FragmentId, _ID], RateLimit | None]


class _Mutation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


_RELATIONS: Final = TypeAdapter(tuple[Relation, ...])


def _named(relation: RelationId) -> Relation:
    """Return a relation with nothing but its id, which no real one is."""
    return Relation.model_construct(
        id=relation, name="", kind=RelationKind.TABLE, columns=(), key=(), vnode_count=0, lake=None
    )


def _whole(plan: Mapping[str, Any], known: Mapping[RelationId, Relation]) -> Mapping[str, Any]:
    """Return the JSON of a job or a fragment with relations in place of their ids."""

    def whole(one: Mapping[str, Any]) -> Any:
        return one if one["columns"] else known[one["id"]]

    alone = {name: whole(plan[name]) for name in ("relation", "upstream") if name in plan}
    several = {name: [whole(one) for one in plan[name]] for name in ("hidden", "lookups", "inputs") if name in plan}
    fragments = {"fragments": [_whole(one, known) for one in plan["fragments"]]} if "fragments" in plan else {}
    return {**plan, **alone, **several, **fragments}


class Pause(_Mutation):
    """Pause every backfill: from this epoch on no scan reads a snapshot row. Live rows and barriers continue."""

    type: Literal["pause"] = "pause"


class Resume(_Mutation):
    """End a pause. Every scan continues at its position."""

    type: Literal["resume"] = "resume"


class Throttle(_Mutation):
    """Replace rate limits: fragment -> rows per second and actor; None is unlimited, 0 pauses the fragment.

    From then on the service adapts the limits of the fragments in `auto` to the load. The other limits stay fixed.
    """

    type: Literal["throttle"] = "throttle"
    fragments: Annotated[_Limits, first_fault(TypeAdapter(_Limits))]
    auto: _Scans = ()

    @model_validator(mode="after")
    def _adapted_from_a_number(self) -> Self:
        if any(self.fragments.get(one) is None for one in self.auto):
            raise ValueError("a limit is adapted from a number: `auto` names fragments that have one")
        return self


class StartFragmentBackfill(_Mutation):
    """Start fragments that wait for their place in the backfill order."""

    type: Literal["start_fragment_backfill"] = "start_fragment_backfill"
    fragments: _Scans


class Add(_Mutation):
    """Build the actors of jobs. On an initial barrier: every job of the graph, and whether the graph is paused.

    As JSON, a relation of many jobs and fragments is whole in `relations`, and has no columns in them. The field is
    empty in memory.
    """

    type: Literal["add"] = "add"
    jobs: tuple[JobPlan, ...]
    paused: bool = False
    relations: tuple[Relation, ...] = ()

    @model_serializer(mode="wrap")
    def _brief(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        known: dict[RelationId, Relation] = {}

        def briefly(relation: Relation) -> Relation:
            first = known.setdefault(relation.id, relation)
            same = first is relation or first == relation
            return _named(relation.id) if same else relation

        jobs = tuple(one.each_relation(briefly) for one in self.jobs)
        return dump(self.model_copy(update={"jobs": jobs, "relations": tuple(known.values())}))

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not data.get("relations"):  # pyright: ignore[reportUnknownMemberType]
            return data  # pyright: ignore[reportUnknownVariableType]
        given = cast("Mapping[str, Any]", data)
        known = {one.id: one for one in _RELATIONS.validate_python(given["relations"])}
        return {**given, "relations": (), "jobs": [_whole(one, known) for one in given["jobs"]]}


class Stop(_Mutation):
    """Stop jobs. Their actors do nothing from this epoch on, and their tables are dropped after its commit (I9)."""

    type: Literal["stop"] = "stop"
    jobs: Annotated[tuple[Annotated[JobId, _ID], ...], FailFast(), AfterValidator(_once)]


class Update(_Mutation):
    """Replace the actors of fragments: fragment -> its new actors, which own the same vnodes as the old ones (I11).

    It carries no positions, because the worker has newer ones than the meta store. The worker moves each position with
    its vnode.
    """

    type: Literal["update"] = "update"
    fragments: dict[Annotated[FragmentId, _ID], tuple[ActorPlan, ...]]


class Reload(_Mutation):
    """Read the history of followed tables again, over their stored rows: fragment -> its new scan.

    It carries no positions, because the history begins anew. A broken table is followed again.
    """

    type: Literal["reload"] = "reload"
    fragments: dict[Annotated[FragmentId, _ID], CdcScan]
    relations: dict[Annotated[FragmentId, _ID], Relation] = Field(default={})
    """The tables with all of their columns. A reload may add some. One that is not named stays as it was."""


_Any = Pause | Resume | Throttle | StartFragmentBackfill | Add | Stop | Update | Reload
Mutation = Annotated[_Any, Field(discriminator="type")]
MUTATION: TypeAdapter[_Any] = TypeAdapter(Mutation)
