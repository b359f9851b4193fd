"""Check where the tables of a lake lie: in a permitted place, and not where they would feed themselves."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from service.domain.connectors import SINKS
from service.domain.job import TERMINAL, JobState
from service.domain.lake_places import check_no_loop, check_purge, check_target, is_under, located
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.protocol import file_source
from service.protocol.connector import Connector
from service.protocol.delta import is_upsert
from service.protocol.ids import RelationId
from service.protocol.plan import JobPlan

_KNOWN: Final = frozenset(JobState) - TERMINAL
_MADE: Final = _KNOWN - {JobState.CANCELLING, JobState.DROPPING}
"""The states of jobs whose targets are theirs: also of those that wait for their turn, and of failed ones."""


def check_place(world: World, connector: Connector) -> None:
    """Raise Invalid if no table may lie where a connector says, or ValueError."""
    world.external.lake_roots.check(located(connector.options))


async def check_fed_by_others(tx: Transaction, connector: Connector, upstreams: Collection[RelationId]) -> None:
    """Raise Invalid if the rows of `upstreams` come from the table that a target writes, directly or through others."""
    check_no_loop(located(connector.options), await _origins(tx, upstreams))


async def check_free(tx: Transaction, connector: Connector) -> None:
    """Raise Invalid if others use the place that a target is to have, or one below or above it."""
    location = located(connector.options)
    there = [name for _, name, place in await _read_in_place(tx) if is_under(location, place)]
    lakes = [one for entry in await tx.catalog.called(there) if (one := entry.relation.lake) is not None]
    check_target(
        location,
        upsert=is_upsert(connector.options),
        folders={located(one.options) for one in lakes if one.name == file_source.NAME},
        tables={located(one.options) for one in lakes if one.name != file_source.NAME},
        targets={located(one.options): is_upsert(one.options) for _, one in await _targets(tx, _MADE)},
    )


async def check_purged(tx: Transaction, targets: Collection[Connector], doomed: Collection[RelationId]) -> None:
    """Raise Invalid if a known table lies in the folder of a target, and is not one of the doomed ones."""
    read = {place for relation, _, place in await _read_in_place(tx) if relation not in doomed}
    written = {located(one.options) for plan, one in await _targets(tx, _KNOWN) if plan.relation.id not in doomed}
    for one in targets:
        check_purge(located(one.options), read | written)


def committed_to(plan: JobPlan) -> Connector | None:
    """Return the target in a lake to which the epochs of a job are committed."""
    targets = (plan.followed_in_lake, *(scan.sink for scan in plan.table_scans))
    return next((one for one in targets if one is not None and SINKS[one.name].commits), None)


async def _origins(tx: Transaction, upstreams: Collection[RelationId]) -> Collection[str]:
    """Return the locations from which the rows of relations come."""
    writers = await _writers(tx)
    found: set[str] = set()
    seen: set[RelationId] = set()
    left = list(upstreams)
    while left:
        relation = left.pop()
        entry = None if relation in seen else await tx.catalog.get(relation)
        seen.add(relation)
        if entry is None:
            continue
        for plan in await tx.plans.outlines([entry.job]):
            left += [one.id for scan in plan.table_scans for one in scan.reads]
        if entry.relation.lake is not None:
            location = located(entry.relation.lake.options)
            left += [] if location in found else writers.get(location, ())
            found.add(location)
    return found


async def _writers(tx: Transaction) -> Mapping[str, Collection[RelationId]]:
    """Return for each location that a target has what its rows come from."""
    found: dict[str, set[RelationId]] = defaultdict(set)
    for plan, target in await _targets(tx, _KNOWN):
        found[located(target.options)].update(one.id for each in plan.table_scans for one in each.reads)
    return found


async def _read_in_place(tx: Transaction) -> Sequence[tuple[RelationId, str, str]]:
    """Return the id, name and location of each relation whose rows lie in a lake."""
    known = [(one.id, one.name, one.location) for one in await tx.catalog.outlines()]
    return [(one, name, located({"location": place})) for one, name, place in known if place is not None]


async def _targets(tx: Transaction, states: Collection[JobState]) -> Sequence[tuple[JobPlan, Connector]]:
    """Return the targets in lakes of the jobs in these states."""
    plans = await tx.plans.outlines([job.id for job in await tx.jobs.where(states)])
    return [(plan, target) for plan in plans if (target := committed_to(plan)) is not None]
