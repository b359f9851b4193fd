"""Run CREATE SINK: plan a view's job, but send its rows to a connector instead of storing them."""

import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Final

from service.domain.connectors import COMMITS, SINKS, checked_sink
from service.domain.errors import MetaError
from service.domain.own_graph import check_own_graph
from service.domain.roles import Role
from service.domain.strategy import chosen
from service.operations.asking import ask
from service.operations.sources.secrets import value as secret_value
from service.operations.statements.call import Call, handles
from service.operations.statements.outcome import Outcome
from service.operations.statements.views import create_from_query
from service.operations.world import Context, World
from service.ports.records import NewJob
from service.protocol.delta import APP
from service.protocol.ids import RequestId
from service.protocol.relation import RelationKind
from service.protocol.request import ClaimTarget, ReleaseTarget
from service.sql.statements.sinks import CreateSink
from service.telemetry.log import logger

log = logger("sinks")

CLAIM_WAIT: Final = timedelta(minutes=1)
RELEASE_WAIT: Final = timedelta(seconds=15)


def _needs(statement: CreateSink) -> Role:
    """Return the role. The author of a sink chooses the host to which its secrets are sent."""
    return Role.ADMIN if statement.secrets else Role.OPERATOR


@handles(CreateSink, needs=_needs)
async def _create(call: Call, statement: CreateSink) -> Outcome:
    async def sunk(view: NewJob) -> NewJob:
        relation = view.relation.model_copy(update={"kind": RelationKind.SINK})
        key = [part.name for part in relation.key]
        connector = checked_sink(statement.options, statement.secrets, relation.visible, key)
        for option, name in statement.secrets.items():
            await secret_value(call.world, name, position=statement.positions.get(option))
        new = replace(view, relation=relation)
        if SINKS[connector.name].commits:
            check_own_graph(COMMITS, chosen(call.session))
            # Ids of sinks repeat in other installations, which may write to the same table.
            options = {**connector.options, APP: f"tidefill-{secrets.token_hex(8)}"}
            connector = connector.model_copy(update={"options": options})
            await ask(
                call.world, ClaimTarget(id=RequestId(0), connector=connector, relation=relation), limit=CLAIM_WAIT
            )
            new = replace(new, own_graph=new.own_graph or COMMITS)
        last = (replace(scan, sink=connector) if scan.output is None else scan for scan in view.table_scans)
        return replace(new, fragments=tuple(last))

    return await create_from_query(call, statement.query, RelationKind.SINK, sunk)


async def target_of(world: Context, name: str) -> ReleaseTarget | None:
    """Return what releases the target of a sink, or None if there is nothing to release."""
    async with world.stores.begin() as tx:
        found = await tx.catalog.named(name)
        plans = [] if found is None else await tx.plans.of([found.job])
    for plan in plans:
        for scan in plan.table_scans:
            if scan.sink is not None and SINKS[scan.sink.name].commits:
                return ReleaseTarget(id=RequestId(0), connector=scan.sink, relation=plan.relation)
    return None


async def release(world: World, target: ReleaseTarget) -> None:
    """Have a worker remove the files that a dropped sink had prepared. Files that stay harm nobody."""
    try:
        await ask(world, target, limit=RELEASE_WAIT)
    except MetaError as error:
        log.warning("sink.not_released", sink=target.relation.name, error=str(error))
