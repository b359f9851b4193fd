"""Adapt limits to the load: measure, decide, enqueue an ordinary Throttle. Each tick follows the publication of a
barrier.

The next ordinary barrier carries the change, as it carries a user's command. The change is durable, acknowledged with
its epoch, and stored with the fragment at the commit (I4). The next change waits until a barrier after it is published.
All state is in the meta store, so another leader or the next generation continues from the last committed limit.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from service.domain.adaptive import (
    Adaptation,
    Bounds,
    Passed,
    Reading,
    decided,
    of_latency,
    scale_of,
    to_ask,
)
from service.domain.parameters import SystemParameters
from service.operations.commands.limits import throttled
from service.operations.parameters import HTTP_PROBE, SQL_PROBE
from service.operations.retrying import retried
from service.operations.sources.registry import address
from service.operations.upkeep.load_signals import measured, measured_outside
from service.operations.world import Context, World
from service.ports.limits import AdaptedScan, Look
from service.ports.meta_store import Transaction
from service.ports.records import BarrierRecord
from service.ports.sources import Address
from service.protocol.barrier import BarrierKind
from service.protocol.ids import DATABASE_GRAPH, FragmentId, GraphId, Term
from service.protocol.mutation import Throttle
from service.telemetry.log import logger

LOOKED_AT: Final = 8
"""The number of recent barriers that are read. They usually include two usable ones, see `_passed`."""

log = logger("adaptive")


async def graphs(world: Context) -> Sequence[GraphId]:
    """Return the graphs with adaptive limits. Raises Unavailable."""
    async with world.stores.begin() as tx:
        return await tx.adaptations.graphs()


@retried
async def adapt(world: World, graph: GraphId, *, term: Term) -> int:
    """Run one tick for every scan with an adaptive limit, and return the number of enqueued changes.

    Raises Deposed, Unavailable.
    """
    async with world.stores.begin() as tx:
        scans = await tx.adaptations.adapted(graph)
        if not scans:
            return 0
        # A backfill in any graph must not delay the database graph, so its barriers are measured.
        passed = _passed(await tx.barriers.history(DATABASE_GRAPH, limit=LOOKED_AT))
        if not any(_due(scan, passed) for scan in scans):
            return 0
        parameters = SystemParameters.of(await tx.parameters.all())
        url, query = await tx.parameters.secret(HTTP_PROBE), await tx.parameters.secret(SQL_PROBE)
        places = await _places(world, tx, [scan.fragment for scan in scans])
    at_all, outside = await asyncio.gather(
        measured(world, parameters, url=url, query=query), _measured_outside(world, parameters, places)
    )
    circumstances = _Circumstances(
        passed=passed,
        readings=at_all,
        outside=outside,
        bounds=parameters.auto_bounds,
        target=_target(parameters),
    )
    async with world.stores.begin(term) as tx:
        looks = await _looks(tx, graph, circumstances)
        await _ask(tx, graph, looks, now=world.clock.now())
    for look in looks:
        if look.asked is not None:
            log.info("limit.adapted", **_facts(look))
    return sum(look.asked is not None for look in looks)


@dataclass(frozen=True, slots=True)
class _Circumstances:
    """The measurements of one tick.

    `passed` is newest first. `readings` apply to all scans. `outside` has the readings of a scan's external database.
    """

    passed: Sequence[Passed]
    readings: Sequence[Reading]
    outside: Mapping[FragmentId, Sequence[Reading]]
    bounds: Bounds
    target: timedelta

    def look(self, scan: AdaptedScan, scale: float | None) -> Look:
        """Decide the limit of a scan."""
        latency = of_latency(self.passed, since=scan.since, target=self.target)
        readings = [*self.readings, *self.outside.get(scan.fragment, ())]
        if latency is not None:
            readings.insert(0, latency)
        decision = decided(_adaptation(scan), readings, used=_used(scan), bounds=self.bounds, scale=scale)
        return Look(
            scan=scan,
            after=decision.after,
            seen=self.passed[0].epoch,
            move=decision.move,
            signal=decision.signal,
            reason=decision.reason,
            readings=readings,
            asked=to_ask(scan.rate_limit, decision.after, self.bounds),
        )


async def _places(world: World, tx: Transaction, scans: Collection[FragmentId]) -> Mapping[FragmentId, Address]:
    """Return the source addresses of the scans that read external tables."""
    following = {one.fragment: one.source for one in await tx.following.tables() if one.fragment in scans}
    sources = [await tx.sources.get(one) for one in set(following.values())]
    places = {source.id: await address(world, tx, source) for source in sources if source is not None}
    return {fragment: places[source] for fragment, source in following.items() if source in places}


async def _measured_outside(
    world: World, parameters: SystemParameters, places: Mapping[FragmentId, Address]
) -> Mapping[FragmentId, Sequence[Reading]]:
    """Measure each source once, all concurrently."""
    asked = list(set(places.values()))
    found = await asyncio.gather(*(measured_outside(world, parameters, at) for at in asked))
    said = dict(zip(asked, found, strict=True))
    return {fragment: said[at] for fragment, at in places.items()}


async def _looks(tx: Transaction, graph: GraphId, circumstances: _Circumstances) -> Sequence[Look]:
    """Lock the scans and decide their limits, except for scans with an uncommitted Throttle.

    The locks serialise this with concurrent changes of the limits.
    """
    scans = await tx.adaptations.adapted(graph, hold=True)
    changing = await throttled(tx)
    scale = scale_of([_adaptation(scan) for scan in scans])
    return [
        circumstances.look(scan, scale)
        for scan in scans
        if _due(scan, circumstances.passed) and scan.fragment not in changing
    ]


async def _ask(tx: Transaction, graph: GraphId, looks: Sequence[Look], *, now: datetime) -> None:
    await tx.adaptations.record(looks, now=now)
    limits: dict[FragmentId, int | None] = {look.scan.fragment: look.asked for look in looks if look.asked is not None}
    if not limits:
        return
    mutation = Throttle(fragments=limits, auto=tuple(limits))
    await tx.commands.add(graph, mutation, asked_by="the adaptive limit", now=now, hurried=False)
    for look in looks:
        if look.asked is not None:
            await tx.events.append("limit.adapted", _facts(look), now=now)


def _facts(look: Look) -> Mapping[str, object]:
    return {
        "job": look.scan.job,
        "fragment": look.scan.fragment,
        "before": look.scan.rate_limit,
        "after": look.asked,
        "signal": look.signal,
        "reason": look.reason,
    }


def _passed(records: Sequence[BarrierRecord]) -> Sequence[Passed]:
    """Return the published checkpoints, newest first.

    Other barriers do not show the usual latency. An initial barrier starts actors, and a barrier that is not a
    checkpoint is published with a later one.
    """
    return [
        Passed(one.barrier.curr, one.published_at - one.injected_at, _history(one))
        for one in records
        if one.published_at is not None and one.barrier.kind is BarrierKind.CHECKPOINT
    ]


def _history(record: BarrierRecord) -> timedelta | None:
    """Return the time that the worker read history in this epoch, or None if it reported none."""
    reading = [took for name, took in record.timings_ms.items() if name.startswith("reading_")]
    return timedelta(milliseconds=sum(reading)) if reading else None


def _due(scan: AdaptedScan, passed: Sequence[Passed]) -> bool:
    return bool(passed) and passed[0].epoch > max(scan.since, scan.seen)


def _target(parameters: SystemParameters) -> timedelta:
    return timedelta(milliseconds=parameters.backfill_auto_latency_target_ms or parameters.barrier_interval_ms)


def _adaptation(scan: AdaptedScan) -> Adaptation:
    return scan.adaptation or Adaptation(float(scan.rate_limit))


def _used(scan: AdaptedScan) -> float | None:
    """Return the rows per second of the busiest actor since the last tick, or None if unknown."""
    if scan.rows_at is None or scan.read_at is None or scan.read_at <= scan.rows_at:
        return None
    seconds = (scan.read_at - scan.rows_at).total_seconds()
    return max((scan.read[one] - rows for one, rows in scan.rows.items() if one in scan.read), default=0) / seconds
