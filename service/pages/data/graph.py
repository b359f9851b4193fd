"""The graph of relations as boxes and paths. The same boxes are a nested list for those who do not see it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.operations.status.lineage import Lineage, Member
from service.operations.status.models import JobView
from service.pages.data.bars import Bar, job_bar
from service.pages.layout import HEIGHT, WIDTH, layout
from service.protocol.ids import JobId, RelationId
from service.protocol.relation import RelationKind

DRAWN_MAX: Final = 500
"""How many relations are drawn. More are found on the page of relations."""
NAME_MAX: Final = 21
"""How many characters of a name fit a box."""


@dataclass(frozen=True, slots=True)
class Box:
    """A relation. `word` is its state in one word, which is also the class of its colour."""

    id: RelationId
    name: str
    short: str
    kind: str
    word: str
    note: str
    bar: Bar | None
    address: str
    reads: tuple[str, ...]
    x: int = 0
    y: int = 0

    @property
    def filled(self) -> int:
        """The width of the bar in pixels."""
        return 0 if self.bar is None else round((WIDTH - 20) * (self.bar.percent or 0) / 100)


@dataclass(frozen=True, slots=True)
class Graph:
    """The picture. `hidden` counts the relations that are not drawn."""

    boxes: tuple[Box, ...]
    paths: tuple[str, ...]
    width: int
    height: int
    hidden: int
    box_width: int = WIDTH
    box_height: int = HEIGHT


def graph(found: Lineage, jobs: Mapping[JobId, JobView], stuck: Collection[JobId] = ()) -> Graph:
    """Return the picture of a lineage, at most `DRAWN_MAX` relations of it. `stuck` are jobs whose graph fails."""
    drawn = [one for one in found.members if one.kind is not RelationKind.INTERNAL][:DRAWN_MAX]
    names = {one.id: one.name for one in found.members}
    reads: dict[RelationId, list[str]] = {}
    for read, reader in found.edges:
        reads.setdefault(reader, []).append(names[read])
    shape = layout([one.id for one in drawn], found.edges)
    boxes = tuple(
        _box(one, jobs.get(one.job) if one.job else None, reads.get(one.id, ()), (at.x, at.y), stuck=one.job in stuck)
        for one, at in zip(drawn, shape.placed, strict=True)
    )
    return Graph(boxes, shape.paths, shape.width, shape.height, len(found.members) - len(drawn))


def word_of(member: Member, job: JobView | None) -> str:
    """Return the state of a relation in one word."""
    if job is None:
        return "ready" if member.readable else "creating"
    if job.broken is not None:
        return job.broken.state
    if job.waiting is not None and job.progress.phase not in {"created", "stopped"}:
        return "waits"
    return {"Created": "current", "Creating": "backfilling"}.get(job.state, job.state.lower())


def _box(member: Member, job: JobView | None, reads: Sequence[str], at: tuple[int, int], *, stuck: bool) -> Box:
    name = member.name
    own_graph = "own graph" if job is not None and job.own_graph is not None else ""
    return Box(
        id=member.id,
        name=name,
        short=name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 1]}…",
        kind=member.kind,
        word="waits" if stuck else word_of(member, job),
        note=own_graph,
        bar=None if job is None else job_bar(job),
        address=f"/jobs/{job.id}" if job is not None else _address(member),
        reads=tuple(reads),
        x=at[0],
        y=at[1],
    )


def _address(member: Member) -> str:
    return "/sources" if member.kind is RelationKind.SOURCE else "/relations#others"
