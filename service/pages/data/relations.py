"""The relations, and one of them: its columns, key, size, indexes, what it reads and what reads it, and some rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.errors import MetaError
from service.operations.statements import dispatch
from service.operations.status import lineage, listing, staleness
from service.operations.status.lineage import IndexView, LakeVersion, Member
from service.operations.status.models import Broken, RelationView
from service.pages.asking import Ask
from service.pages.data.jobs import not_current
from service.pages.data.sql import SqlPage, shown
from service.protocol.ids import RelationId
from service.protocol.quoting import quoted
from service.protocol.relation import RelationKind

PAGE_SIZE: Final = 200
SAMPLE_ROWS: Final = 20
_JOBLESS: Final = frozenset({RelationKind.VIEW, RelationKind.INDEX, RelationKind.SOURCE})


@dataclass(frozen=True, slots=True)
class Relations:
    """A page of relations with a job, and all the objects without one on the first page. `faults` are the states, such
    as `broken`, of those that are not kept current.
    """

    rows: Sequence[RelationView]
    others: Sequence[Member]
    faults: Mapping[RelationId, str]
    after: str | None
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation. `sample` are some of its rows at one epoch, if they were asked for; `refusal` is why there are none.
    `location` is where its rows lie, if that is a lake, and `version` the one from which they are read. `broken` is why
    it is not kept current, and `fault` is that in one word, as in the list.
    """

    one: RelationView
    reads: Sequence[Member]
    readers: Sequence[Member]
    indexes: Sequence[IndexView]
    sample: SqlPage | None
    refusal: str | None
    location: str | None
    version: LakeVersion | None
    broken: Broken | None
    fault: str


async def read(ask: Ask) -> Relations:
    """Read one page of relations."""
    after = ask.number("after") or 0
    page = await listing.relations(ask.world, after=after, limit=PAGE_SIZE)
    others = [one for one in (await lineage.lineage(ask.world)).members if one.kind in _JOBLESS] if not after else []
    lapses = await staleness.lapses_of(ask.world)
    faults = {one.id: not_current(one.state, lapses.get(one.id)) for one in (*page.items, *others)}
    return Relations(page.items, others, faults, page.next)


async def read_one(ask: Ask) -> Relation:
    """Read the relation of the address. Raises NotFound."""
    name = ask.text("name")
    one = await listing.relation(ask.world, name)
    found = await lineage.lineage(ask.world)
    broken = (await staleness.lapses_of(ask.world)).get(one.id)
    members = {each.id: each for each in found.members}
    member = members.get(one.id)
    sample, refusal = None, None
    if ask.text("sample"):
        try:
            sample = await _sample(ask, name)
        except MetaError as error:
            refusal = error.message
    return Relation(
        one,
        reads=[members[read] for read, reader in found.edges if reader == one.id],
        readers=[members[reader] for read, reader in found.edges if read == one.id],
        indexes=await lineage.indexes_of(ask.world, name),
        sample=sample,
        refusal=refusal,
        location=None if member is None else member.location,
        version=None if member is None else (await lineage.lake_versions(ask.world, [member])).get(one.id),
        broken=broken,
        fault=not_current(one.state, broken),
    )


async def _sample(ask: Ask, name: str) -> SqlPage:
    statement = f"SELECT * FROM {quoted(name)} LIMIT {SAMPLE_ROWS}"
    return shown("", await dispatch.run(ask.world, statement, session={}, asked_by=ask.caller))
