"""Have a worker make the target of rows ready, before the job that sends them is recorded."""

import secrets
from datetime import timedelta
from typing import Final

from service.domain.lake_places import located
from service.operations.asking import looking
from service.operations.leaving import Gone
from service.operations.sources.places import check_free
from service.operations.world import World
from service.ports.audit import Asker
from service.protocol.connector import Connector
from service.protocol.delta import APP
from service.protocol.ids import RequestId
from service.protocol.relation import Relation
from service.protocol.request import ClaimTarget

CLAIM_WAIT: Final = timedelta(minutes=1)


async def claimed(
    world: World, connector: Connector, relation: Relation, *, asked_by: Asker, gone: Gone | None = None
) -> Connector:
    """Return the connector of a target that is ready, with the name of its only writer. Raises Invalid, Unavailable."""
    world.external.lake_roots.check_target(located(connector.options))
    async with world.stores.begin() as tx:
        await check_free(tx, connector)
    # Ids of relations repeat in other installations, which may write to the same table.
    options = {**connector.options, APP: f"tidefill-{secrets.token_hex(8)}"}
    connector = connector.model_copy(update={"options": options})
    async with looking(world, asked_by, gone) as turn:
        roots = world.external.lake_roots.roots
        ask = ClaimTarget(id=RequestId(0), connector=connector, relation=relation, roots=roots)
        await turn.ask(ask, limit=CLAIM_WAIT)
    return connector
