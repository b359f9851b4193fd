"""Check where the tables of a lake lie: in a permitted place, and not where they would feed themselves."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from service.domain.connectors import SINKS
from service.domain.job import IN_GRAPH
from service.domain.lake_places import check_no_loop, check_purge, located
from service.operations.world import World
from service.ports.meta_store import Transaction
from service.protocol.connector import Connector
from service.protocol.ids import RelationId


def check_place(world: World, connector: Connector) -> None:
    """Raise Invalid if no table may lie where a connector says, or ValueError."""
    world.external.lake_roots.check(located(connector.options))


async def check_fed_by_others(tx: Transaction, connector: Connector, upstreams: Collection[RelationId]) -> None:
    """Raise Invalid if the rows of `upstreams` come from the table that a target writes, directly or through others."""
    check_no_loop(located(connector.options), await _origins(tx, upstreams))


async def check_purged(tx: Transaction, targets: Collection[Connector], doomed: Collection[RelationId]) -> None:
    """Raise Invalid if a known table lies in the folder of a target, and is not one of the doomed ones."""
    own = {located(one.options) for one in targets}
    lakes = [(entry.relation.id, entry.relation.lake) for entry in await tx.catalog.all()]
    read = {located(lake.options) for relation, lake in lakes if lake is not None and relation not in doomed}
    others = read.union(await _writers(tx)) - own
    for location in own:
        check_purge(location, others)


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
        for plan in await tx.plans.of([entry.job]):
            left += [one.id for scan in plan.table_scans for one in scan.reads]
        if entry.relation.lake is not None:
            location = located(entry.relation.lake.options)
            left += [] if location in found else writers.get(location, ())
            found.add(location)
    return found


async def _writers(tx: Transaction) -> Mapping[str, Collection[RelationId]]:
    """Return for each location that a target has what its rows come from."""
    found: dict[str, set[RelationId]] = defaultdict(set)
    for plan in await tx.plans.of([job.id for job in await tx.jobs.where(IN_GRAPH)]):
        for scan in plan.table_scans:
            if scan.sink is not None and SINKS[scan.sink.name].commits:
                found[located(scan.sink.options)].update(one.id for each in plan.table_scans for one in each.reads)
    return found
