"""The relations, and one of them: its columns, key, size, indexes, what it reads and what reads it, and some rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.errors import MetaError
from service.operations.statements import dispatch
from service.operations.status import lineage, listing
from service.operations.status.lineage import IndexView, Member
from service.operations.status.models import Broken, RelationView
from service.pages.asking import Ask
from service.pages.data.sql import SqlPage, shown
from service.protocol.quoting import quoted
from service.protocol.relation import RelationKind

PAGE_SIZE: Final = 200
SAMPLE_ROWS: Final = 20
_JOBLESS: Final = frozenset({RelationKind.VIEW, RelationKind.INDEX, RelationKind.SOURCE})


@dataclass(frozen=True, slots=True)
class Relations:
    """A page of relations with a job, and all the objects without one on the first page."""

    rows: Sequence[RelationView]
    others: Sequence[Member]
    after: str | None
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation. `sample` are some of its rows at one epoch, if they were asked for; `fault` is why there are none.
    `location` is where its rows lie, if that is a lake. `broken` is why it is not kept current.
    """

    one: RelationView
    reads: Sequence[Member]
    readers: Sequence[Member]
    indexes: Sequence[IndexView]
    sample: SqlPage | None
    fault: str | None
    location: str | None
    broken: Broken | None


async def read(ask: Ask) -> Relations:
    """Read one page of relations."""
    after = ask.number("after") or 0
    page = await listing.relations(ask.world, after=after, limit=PAGE_SIZE)
    others = [one for one in (await lineage.lineage(ask.world)).members if one.kind in _JOBLESS] if not after else []
    return Relations(page.items, others, page.next)


async def read_one(ask: Ask) -> Relation:
    """Read the relation of the address. Raises NotFound."""
    name = ask.text("name")
    one = await listing.relation(ask.world, name)
    found = await lineage.lineage(ask.world)
    members = {each.id: each for each in found.members}
    sample, fault = None, None
    if ask.text("sample"):
        try:
            sample = await _sample(ask, name)
        except MetaError as error:
            fault = error.message
    return Relation(
        one,
        reads=[members[read] for read, reader in found.edges if reader == one.id],
        readers=[members[reader] for read, reader in found.edges if read == one.id],
        indexes=await lineage.indexes_of(ask.world, name),
        sample=sample,
        fault=fault,
        location=members[one.id].location if one.id in members else None,
        broken=(await listing.job(ask.world, one.job)).job.broken,
    )


async def _sample(ask: Ask, name: str) -> SqlPage:
    statement = f"SELECT * FROM {quoted(name)} LIMIT {SAMPLE_ROWS}"
    return shown("", await dispatch.run(ask.world, statement, session={}, asked_by=ask.caller))
