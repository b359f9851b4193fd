"""A table is compared with the one that it follows in parts that fit in memory, whatever is known of its size (I8)."""

import threading
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from service.domain.comparing import KEPT_MAX, PART_ROWS, ROWS_MAX, Digest, Key, Part, Rows
from service.domain.errors import Conflict
from service.operations.verify import followed
from service.ports.records import NewJob, NewSourceScan
from service.ports.source_records import NewSource, Password
from service.ports.sources import Address
from service.protocol.cdc import CdcColumn, CdcScan, CdcSource, Lsn, Split
from service.protocol.ids import Epoch, GraphId, RelationId
from service.protocol.relation import Relation
from service.protocol.request import Verified
from tests.support.http import world_of
from tests.support.meta_store import NOW, add_created, collected, relation, stores_on

pytestmark = pytest.mark.postgres
OFFSET = "0/10"


@dataclass
class Held:
    """The rows of one side: texts of whole numbers, each of which belongs to the vnode of its remainder."""

    rows: Mapping[int, int]
    vnode_count: int
    digests: list[Part] = field(default_factory=list[Part])
    most: int = 0
    """How many rows were read at once."""

    def of(self, part: Part) -> dict[int, int]:
        after = None if part.after is None else int(part.after[0])
        upto = None if part.upto is None else int(part.upto[0])
        first, last = part.vnodes or (0, self.vnode_count)
        return {
            key: value
            for key, value in self.rows.items()
            if (after is None or key > after)
            and (upto is None or key <= upto)
            and first <= key % self.vnode_count <= last
        }

    def digest(self, part: Part) -> Digest:
        self.digests.append(part)
        found = self.of(part)
        return Digest(len(found), sum(found.values()))

    def read(self, part: Part, most: int) -> dict[Key, int]:
        found = {(str(key),): value for key, value in list(self.of(part).items())[:most]}
        self.most = max(self.most, len(found))
        return found

    def read_of(self, keys: Collection[Key]) -> Rows:
        return {key: self.rows[int(key[0])] for key in keys if int(key[0]) in self.rows}


@dataclass
class There:
    """See `service.ports.comparing.ExternalRows`."""

    held: Held
    alike: bool = False

    async def ordered_alike(self, *_: object) -> bool:
        return self.alike

    async def end(self, _at: Address, _scan: CdcScan, _relation: Relation, after: Key | None, rows: int) -> Key | None:
        rest = sorted(self.held.of(Part(after)))
        return (str(rest[rows - 1]),) if len(rest) >= rows else None

    async def digest(self, _at: Address, _scan: CdcScan, _relation: Relation, part: Part) -> tuple[Digest, Lsn]:
        return self.held.digest(part), OFFSET

    async def rows(self, _at: Address, _scan: CdcScan, _relation: Relation, part: Part, most: int) -> tuple[Rows, Lsn]:
        return self.held.read(part, most), OFFSET

    async def rows_of(
        self, _at: Address, _scan: CdcScan, _relation: Relation, keys: Collection[Key]
    ) -> tuple[Rows, Lsn]:
        return self.held.read_of(keys), OFFSET


@dataclass
class Here:
    """See `service.ports.comparing.FollowedRows`."""

    held: Held

    async def digest(self, _scan: CdcScan, _relation: Relation, part: Part, *, at: Epoch) -> Digest:
        del at
        return self.held.digest(part)

    async def rows(self, _scan: CdcScan, _relation: Relation, part: Part, most: int, *, at: Epoch) -> Rows:
        del at
        return self.held.read(part, most)

    async def rows_of(self, _scan: CdcScan, _relation: Relation, keys: Collection[Key], *, at: Epoch) -> Rows:
        del at
        return self.held.read_of(keys)

    async def vnodes(self, _scan: CdcScan, _relation: Relation, keys: Collection[Key]) -> dict[Key, int]:
        return {key: int(key[0]) % self.held.vnode_count for key in keys}

    @asynccontextmanager
    async def pin(self, _graph: GraphId, _epoch: Epoch, *, holder: str) -> AsyncGenerator[None]:
        del holder
        yield


async def compared(url: str, there: There, here: Here, *, total: int | None, key_count: int) -> Verified:
    """Compare them, as tables of which so much is known."""
    options = {"connector": "postgres-cdc", "hostname": "db", "username": "me", "database.name": "shop"}
    new = NewSource("pg", "CREATE SOURCE pg", options, Password(value="pw"), None, None, owns_publication=True)
    async with stores_on(url) as (stores, _), stores.begin() as tx:
        source = await tx.sources.add(new, now=NOW, abandoned_at=NOW)
        await tx.sources.made(source.id, OFFSET)
        scan = CdcScan(
            source=CdcSource(id=source.id, name="pg", slot=source.slot, publication=source.publication, offset=OFFSET),
            external_schema="public",
            external_table="orders",
            columns=(CdcColumn(name="id", external="id", type="bigint"),),
            split_column="id",
            splits=(Split(left=None, right=None),),
            readable_after=700,
            total=total,
        )
        fragment = NewSourceScan(actors=(((0, 0),),), cdc=scan, completed=True)
        table = relation("t", vnode_count=here.held.vnode_count)
        reads = (RelationId(source.id),)
        job = await add_created(
            tx, NewJob(table, "CREATE TABLE t", background=False, fragments=(fragment,), views=reads)
        )
        await tx.fragments.record([collected(1, keys={job.relation: key_count})], now=NOW)
        (plan,) = await tx.plans.of([job.id])
    ports: dict[str, Any] = {"external_rows": there, "followed_rows": here, "pins": here}
    async with stores_on(url) as (stores, _):
        return await followed.compare(world_of(stores, **ports), plan)


def sides(there: Mapping[int, int], here: Mapping[int, int], *, vnode_count: int = 64) -> tuple[There, Here]:
    return There(Held(there, vnode_count)), Here(Held(here, vnode_count))


MANY = {number: number * 7 for number in range(ROWS_MAX + 10)}


@pytest.mark.parametrize("total", [None, 0, 1000])
async def test_i8_the_parts_are_of_what_the_table_has_by_now(database_url: str, total: int | None) -> None:
    """Nothing is known of the external table where its history was not asked for, or an old count."""
    there, here = sides(MANY, MANY)
    found = await compared(database_url, there, here, total=total, key_count=len(MANY))
    assert (found.equal, found.rows, found.keys_differing) == (True, len(MANY), 0)
    assert len(there.held.digests) == len(MANY) // PART_ROWS + 1
    assert there.held.most == here.held.most == 0


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize(
    ("wanted", "held"), [(MANY, {}), ({}, MANY)], ids=["all of it is missing", "all of it is extra"]
)
async def test_i8_what_differs_is_read_in_pieces_and_counted(
    database_url: str, wanted: Mapping[int, int], held: Mapping[int, int], alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither side is as large as it was said to be."""
    there, here = sides(wanted, held)
    there.alike = alike
    kept: list[int] = []
    asked: Callable[..., Any] = here.vnodes

    async def vnodes(scan: CdcScan, relation: Relation, keys: Collection[Key]) -> dict[Key, int]:
        kept.append(len(keys))
        return await asked(scan, relation, keys)

    monkeypatch.setattr(here, "vnodes", vnodes)
    found = await compared(database_url, there, here, total=0, key_count=0)
    assert not found.equal
    assert (found.expected_rows, found.rows, found.keys_differing) == (len(wanted), len(held), len(MANY))
    assert 0 < max(there.held.most, here.held.most) <= ROWS_MAX
    assert kept == [KEPT_MAX]
    assert sum(len(one.missing) + len(one.extra) for one in found.differences) == followed.DIFFERING_MAX


async def test_i8_a_part_of_one_vnode_that_is_too_large_is_refused(database_url: str) -> None:
    there, here = sides(MANY, {}, vnode_count=1)
    with pytest.raises(Conflict, match=f"at most {ROWS_MAX} are compared at once"):
        await compared(database_url, there, here, total=0, key_count=0)
    assert there.held.most == 0


async def test_i13_rows_are_compared_beside_the_event_loop(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[threading.Thread] = set()
    compare = followed.pairs

    def pairs(wanted: Rows, held: Rows) -> Any:
        threads.add(threading.current_thread())
        return compare(wanted, held)

    monkeypatch.setattr(followed, "pairs", pairs)
    found = await compared(database_url, *sides({1: 1, 2: 2}, {1: 1, 2: 3}), total=0, key_count=0)
    assert found.keys_differing == 1
    assert threads
    assert threading.main_thread() not in threads
