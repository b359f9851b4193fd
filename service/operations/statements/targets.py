"""Send the rows of a planned job to an external system. A worker makes the target ready, and cleans it up last."""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from service.domain.connectors import COMMITS, SINKS, checked_sink
from service.domain.errors import MetaError
from service.domain.own_graph import check_own_graph
from service.domain.roles import Role
from service.domain.strategy import chosen
from service.operations.asking import looking
from service.operations.sources.claiming import claimed
from service.operations.sources.places import check_fed_by_others, check_place
from service.operations.sources.secrets import check_secrets
from service.operations.statements.call import Call
from service.operations.world import Context, World
from service.ports.audit import Asker
from service.ports.records import NewJob
from service.protocol.ids import RequestId
from service.protocol.request import ReleaseTarget
from service.sql.statements.target import Target
from service.telemetry.log import logger

log = logger("targets")

RELEASE_WAIT: Final = timedelta(seconds=15)


def needs(target: Target | None) -> Role:
    """Return the role. The author of a target chooses the host to which its secrets are sent."""
    return Role.ADMIN if target is not None and target.secrets else Role.OPERATOR


async def sent(call: Call, new: NewJob, target: Target) -> NewJob:
    """Return a job whose last stages write to a target, which is ready. Raises Invalid, NotFound, Unavailable."""
    relation = new.relation
    key = [part.name for part in relation.key]
    connector = checked_sink(target.options, target.secrets, relation.delivered, key)
    await check_secrets(call.world, target)
    if SINKS[connector.name].commits:
        check_place(call.world, connector)
        async with call.world.stores.begin() as tx:
            await check_fed_by_others(tx, connector, new.upstreams)
        check_own_graph(COMMITS, chosen(call.session))
        connector = await claimed(call.world, connector, relation, asked_by=call.asked_by, gone=call.gone)
        new = replace(new, own_graph=new.own_graph or COMMITS)
    last = (replace(scan, sink=connector) if scan.output is None else scan for scan in new.table_scans)
    return replace(new, fragments=tuple(last))


async def target_of(world: Context, name: str) -> ReleaseTarget | None:
    """Return what releases the target of a relation, or None if there is nothing to release."""
    async with world.stores.begin() as tx:
        found = await tx.catalog.named(name)
        plans = [] if found is None else await tx.plans.of([found.job])
    for plan in plans:
        for connector in (plan.followed_in_lake, *(scan.sink for scan in plan.table_scans)):
            if connector is not None and SINKS[connector.name].commits:
                return ReleaseTarget(id=RequestId(0), connector=connector, relation=plan.relation)
    return None


async def release(world: World, target: ReleaseTarget, *, asked_by: Asker) -> None:
    """Have a worker remove the files that a dropped job had prepared. Files that stay harm nobody."""
    try:
        async with looking(world, asked_by) as turn:
            await turn.ask(target, limit=RELEASE_WAIT)
    except MetaError as error:
        log.warning("target.not_released", relation=target.relation.name, error=str(error))
