"""Compare a followed table with its external table, part by part, while both change.

One short statement reads a part of the external table and the end of its log. The part of the followed table is read at
a pinned epoch, once the log is applied up to that end. Differing keys are read again, see `service.domain.comparing`.
If the server is unavailable for a while, the comparison waits and continues with the same part.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from service.domain.comparing import (
    KEPT_MAX,
    PART_ROWS,
    ROWS_MAX,
    Digest,
    Key,
    Pair,
    Part,
    Rows,
    cut,
    pairs,
    settled,
)
from service.domain.errors import Conflict, Unavailable
from service.operations.polling import until
from service.operations.sources import registry
from service.operations.world import World
from service.ports.sources import Address
from service.protocol.cdc import CdcScan, Lsn, lsn_of
from service.protocol.ids import DATABASE_GRAPH, Epoch, JobId, RequestId, Vnode
from service.protocol.plan import JobPlan, PositionState
from service.protocol.relation import Relation
from service.protocol.request import Verified, VnodeDifference

ROUNDS_MAX: Final = 20
"""How often keys that keep changing are read again. They count as equal if no difference appeared twice unchanged."""
DIFFERING_MAX: Final = 20
APPLIED_WAIT: Final = timedelta(minutes=10)
AWAY_WAIT: Final = timedelta(minutes=10)

T = TypeVar("T")


@dataclass
class _Found:
    wanted: Digest = field(default_factory=Digest)
    held: Digest = field(default_factory=Digest)
    differing: dict[Key, Pair] = field(default_factory=dict[Key, Pair])
    """At most `KEPT_MAX` of the differing keys. `count` counts all of them."""
    count: int = 0

    def add(self, wanted: Digest, held: Digest, differing: Mapping[Key, Pair]) -> None:
        """Add the result of a part."""
        self.wanted, self.held = self.wanted + wanted, self.held + held
        self.count += len(differing)
        self.differing.update(islice(differing.items(), KEPT_MAX - len(self.differing)))


def followed(plan: JobPlan) -> CdcScan:
    """Return the CDC scan of a table.

    Raises Conflict if it is not a followed table, is broken, or has not read its whole history.
    """
    name, fragment = plan.relation.name, plan.source_scan
    if fragment is None:
        raise Conflict(f'table "{name}" follows nothing: only what is built from an upstream can be verified')
    if plan.relation.lake is not None:
        raise Conflict(
            f'the rows of table "{name}" lie in a lake: only rows in Postgres are compared with those outside'
        )
    if fragment.cdc.broken is not None:
        raise Conflict(f'table "{name}" follows no longer: {fragment.cdc.broken}')
    read = [position.state for actor in fragment.actors for position in actor.positions]
    if len(read) < len(fragment.cdc.splits) or any(state is not PositionState.COMPLETED for state in read):
        raise Conflict(f'the history of table "{name}" is still read: it can be verified once it is there')
    return fragment.cdc


async def compare(world: World, plan: JobPlan) -> Verified:
    """Compare a followed table with its external table.

    Raises Conflict as `followed` does, and Unavailable if the external database is unavailable for `AWAY_WAIT`.
    """
    scan, relation = followed(plan), plan.relation
    async with world.stores.begin() as tx:
        source = await tx.sources.get(scan.source.id)
        asked = await tx.statements.reserve()
        entry = await tx.catalog.get(relation.id)
    if source is None or source.dropped:
        raise Conflict(f'table "{relation.name}" follows nothing any more')
    at = await registry.reached(world, source)
    rows = max(scan.total or 0, 0 if entry is None else entry.key_count)
    comparison = _Comparison(world, plan.id, at, scan, relation, rows, f"compare {asked}")
    found = _Found()
    epoch = Epoch(0)
    async for part in comparison.parts():
        epoch = await comparison.look(part, found)
    vnodes = await world.state_store.followed_rows.vnodes(scan, relation, list(found.differing))
    return Verified(
        id=RequestId(asked),
        epoch=epoch,
        equal=not found.count,
        rows=found.held.rows,
        expected_rows=found.wanted.rows,
        digest=str(found.held),
        expected_digest=str(found.wanted),
        differences=_differences(found.differing, vnodes),
        keys_differing=found.count,
    )


@dataclass(frozen=True, slots=True)
class _Comparison:
    world: World
    job: JobId
    at: Address
    scan: CdcScan
    relation: Relation
    rows: int
    """The approximate number of rows: the larger of the last known counts of both sides."""
    holder: str

    async def parts(self) -> AsyncGenerator[Part]:
        """Yield the parts of the external table in order."""
        there = self.world.external.external_rows
        if not await self._patiently(lambda: there.ordered_alike(self.at, self.scan, self.relation)):
            for part in cut(Part(), self.relation.vnode_count, self.rows):
                yield part
            return
        after: Key | None = None
        while True:
            end = await self._patiently(partial(there.end, self.at, self.scan, self.relation, after, PART_ROWS))
            yield Part(after, end)
            if end is None:
                return
            after = end

    async def look(self, part: Part, found: _Found) -> Epoch:
        """Compare one part and return the epoch at which it was read."""
        there, here = self.world.external.external_rows, self.world.state_store.followed_rows
        wanted, lsn = await self._patiently(lambda: there.digest(self.at, self.scan, self.relation, part))
        async with self._applied(lsn) as epoch:
            held = await here.digest(self.scan, self.relation, part, at=epoch)
        if held == wanted:
            found.add(wanted, held, {})
            return epoch
        rows = max(wanted.rows, held.rows)
        if rows <= ROWS_MAX:
            theirs, lsn = await self._patiently(
                lambda: there.rows(self.at, self.scan, self.relation, part, ROWS_MAX + 1)
            )
            async with self._applied(lsn) as epoch:
                mine = await here.rows(self.scan, self.relation, part, ROWS_MAX + 1, at=epoch)
            rows = max(len(theirs), len(mine))
            if rows <= ROWS_MAX:
                await self._compare(theirs, mine, found)
                return epoch
        return await self._look_closer(part, rows, found)

    async def _look_closer(self, part: Part, rows: int, found: _Found) -> Epoch:
        """Compare the pieces of a part with too many rows. Raises Conflict if a single vnode has too many."""
        pieces = cut(part, self.relation.vnode_count, rows)
        if len(pieces) == 1:
            raise Conflict(
                f'table "{self.relation.name}" differs, and cannot be compared row by row: {rows} rows of it belong to'
                f" one vnode, and at most {ROWS_MAX} are compared at once"
            )
        epoch = Epoch(0)
        for piece in pieces:
            epoch = await self.look(piece, found)
        return epoch

    async def _compare(self, theirs: Rows, mine: Rows, found: _Found) -> None:
        differing = await self._settle(await asyncio.to_thread(pairs, theirs, mine))
        whole = Digest(len(theirs), sum(theirs.values()))
        found.add(whole, _with(whole, differing), differing)

    async def _settle(self, pending: Mapping[Key, Pair]) -> dict[Key, Pair]:
        """Read keys again until each is decided, at most `ROUNDS_MAX` times. Return those that differ."""
        differing: dict[Key, Pair] = {}
        for _ in range(ROUNDS_MAX):
            if not pending:
                break
            said = await asyncio.to_thread(settled, pending, await self._again(list(pending)))
            differing.update(said.differing)
            pending = said.open
        return differing

    async def _again(self, keys: Collection[Key]) -> Mapping[Key, Pair]:
        there, here = self.world.external.external_rows, self.world.state_store.followed_rows
        wanted, lsn = await self._patiently(lambda: there.rows_of(self.at, self.scan, self.relation, keys))
        async with self._applied(lsn) as epoch:
            held = await here.rows_of(self.scan, self.relation, keys, at=epoch)
        return await asyncio.to_thread(pairs, wanted, held)

    @asynccontextmanager
    async def _applied(self, lsn: Lsn) -> AsyncGenerator[Epoch]:
        """Pin an epoch in which all external commits before an LSN are applied."""
        wanted = lsn_of(lsn)

        async def look() -> Epoch | None:
            async with self.world.stores.begin() as tx:
                source = await tx.sources.get(self.scan.source.id)
                committed = (await tx.graphs.state(DATABASE_GRAPH)).committed
                plans = await tx.plans.of([self.job])
            for plan in plans:
                followed(plan)
            if source is None or source.standing.offset is None:
                return None
            return committed if lsn_of(source.standing.offset) >= wanted else None

        epoch = await until(self.world, look, limit=APPLIED_WAIT)
        if epoch is None:
            raise Unavailable(f"the log was not applied up to {lsn} in time")
        async with self.world.state_store.pins.pin(DATABASE_GRAPH, epoch, holder=self.holder):
            yield epoch

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        said: list[Unavailable] = []

        async def look() -> tuple[T] | None:
            try:
                return (await call(),)
            except Unavailable as error:
                said.append(error)
                return None

        found = await until(self.world, look, limit=AWAY_WAIT)
        if found is None:
            raise said[-1]
        return found[0]


def _with(whole: Digest, differing: Mapping[Key, Pair]) -> Digest:
    """Compute the digest of a followed table's part from the digest of the external part and the differing keys."""
    rows = sum((pair.held is not None) - (pair.wanted is not None) for pair in differing.values())
    total = sum((pair.held or 0) - (pair.wanted or 0) for pair in differing.values())
    return Digest(whole.rows + rows, whole.total + total)


def _differences(differing: Mapping[Key, Pair], vnodes: Mapping[Key, int]) -> tuple[VnodeDifference, ...]:
    """Return at most `DIFFERING_MAX` differing keys, grouped by vnode."""
    named = sorted(differing, key=lambda key: (vnodes[key], key))[:DIFFERING_MAX]
    return tuple(
        VnodeDifference(
            vnode=Vnode(vnode),
            missing=tuple(key for key in mine if differing[key].held is None),
            extra=tuple(key for key in mine if differing[key].wanted is None),
            unequal=tuple(key for key in mine if None not in (differing[key].held, differing[key].wanted)),
        )
        for vnode in sorted({vnodes[key] for key in named})
        if (mine := [key for key in named if vnodes[key] == vnode])
    )
