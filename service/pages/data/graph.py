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
    """A relation. `word` is its state in one word, which is also the class of its colour. `said` is all that the box
    shows beside the name, in words.
    """

    id: RelationId
    name: str
    short: str
    kind: str
    word: str
    note: str
    said: str
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
    """The picture. `edges` is one path of all edges, because an element for each takes service and browser longer.
    `hidden` counts the relations that are not drawn.
    """

    boxes: tuple[Box, ...]
    edges: str
    width: int
    height: int
    hidden: int
    box_width: int = WIDTH
    box_height: int = HEIGHT


def graph(
    found: Lineage,
    jobs: Mapping[JobId, JobView],
    stuck: Collection[JobId] = (),
    lapses: Collection[RelationId] = (),
) -> Graph:
    """Return the picture of a lineage, at most `DRAWN_MAX` relations of it. `stuck` are jobs whose graph fails, and
    `lapses` the relations that are not kept current: no job says so of a logical view.
    """
    known = [one for one in found.members if one.kind is not RelationKind.INTERNAL]
    drawn = known[:DRAWN_MAX]
    names = {one.id: one.name for one in found.members}
    reads: dict[RelationId, list[str]] = {}
    for read, reader in found.edges:
        reads.setdefault(reader, []).append(names[read])
    shape = layout([one.id for one in drawn], found.edges)
    boxes = tuple(
        _box(
            one,
            jobs.get(one.job) if one.job else None,
            reads.get(one.id, ()),
            (at.x, at.y),
            word="waits" if one.job in stuck else "stale" if one.job is None and one.id in lapses else None,
        )
        for one, at in zip(drawn, shape.placed, strict=True)
    )
    return Graph(boxes, "".join(shape.paths), shape.width, shape.height, len(known) - len(drawn))


def word_of(member: Member, job: JobView | None) -> str:
    """Return the state of a relation in one word."""
    if job is None:
        return "ready" if member.readable else "creating"
    if job.broken is not None:
        return job.broken.state
    if job.waiting is not None and job.progress.phase not in {"created", "stopped"}:
        return "waits"
    return {"Created": "current", "Creating": "backfilling"}.get(job.state, job.state.lower())


def _box(member: Member, job: JobView | None, reads: Sequence[str], at: tuple[int, int], *, word: str | None) -> Box:
    name = member.name
    note = "own graph" if job is not None and job.own_graph is not None else ""
    word = word or word_of(member, job)
    drawn = None if job is None else job_bar(job)
    return Box(
        id=member.id,
        name=name,
        short=name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 1]}…",
        kind=member.kind,
        word=word,
        note=note,
        said=", ".join(filter(None, (member.kind, note, word, "" if drawn is None else drawn.text))),
        bar=drawn,
        address=f"/jobs/{job.id}" if job is not None else _address(member),
        reads=tuple(reads),
        x=at[0],
        y=at[1],
    )


def _address(member: Member) -> str:
    return "/sources" if member.kind is RelationKind.SOURCE else "/relations#others"
