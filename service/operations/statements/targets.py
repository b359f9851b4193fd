"""Send the rows of a planned job to an external system. A worker makes the target ready, and cleans it up last."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from service.domain.connectors import COMMITS, SINKS, checked_sink
from service.domain.errors import MetaError, Unavailable
from service.domain.own_graph import check_own_graph
from service.domain.roles import Role
from service.domain.strategy import chosen
from service.operations.asking import looking
from service.operations.naming import named, readers
from service.operations.sources.claiming import claimed
from service.operations.sources.places import check_fed_by_others, check_place, check_purged, committed_to
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
PURGE_WAIT: Final = timedelta(seconds=60)


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


async def targets_of(world: Context, name: str, *, purge: bool) -> Sequence[ReleaseTarget]:
    """Return what releases the targets of a relation and of everything that reads it.

    Raises Invalid if `purge` would remove another table.
    """
    async with world.stores.begin() as tx:
        root = await named(tx, name)
        doomed = [] if root is None else [root, *await readers(tx, root.id)]
        plans = await tx.plans.outlines([one.entry.job for one in doomed if one.entry is not None])
        found = [(plan.relation, target) for plan in plans if (target := committed_to(plan)) is not None]
        if purge:
            await check_purged(tx, [target for _, target in found], [one.id for one in doomed])
    return [
        ReleaseTarget(id=RequestId(0), connector=target, relation=relation, purge=purge) for relation, target in found
    ]


async def release(world: World, targets: Sequence[ReleaseTarget], *, asked_by: Asker) -> Sequence[str]:
    """Have a worker remove the files that dropped jobs had prepared, or those of their tables.

    Return notices for users. Prepared files that stay harm nobody. If no worker answers, none is asked again.
    """
    left: list[str] = []
    error: MetaError | None = None
    for target in targets:
        if not isinstance(error, Unavailable):
            error = await _released(world, target, asked_by)
        if error is not None:
            name = target.relation.name
            log.warning("target.not_released", relation=name, error=str(error))
            if target.purge:
                left.append(f"{name} is dropped, and not all files of its table are removed: {error}")
    return left


async def _released(world: World, target: ReleaseTarget, asked_by: Asker) -> MetaError | None:
    """Ask a worker, and return the error if it could not."""
    try:
        async with looking(world, asked_by) as turn:
            await turn.ask(target, limit=PURGE_WAIT if target.purge else RELEASE_WAIT)
    except MetaError as error:
        return error
    return None
