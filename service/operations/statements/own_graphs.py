"""Decide from the catalog whether the job of a new view stays in a graph of its own. See `service.domain.own_graph`."""

from collections.abc import Sequence

from service.domain.own_graph import own_graph, reading, reading_lake
from service.domain.parameters import SystemParameters
from service.domain.strategy import Strategy
from service.operations.jobs.moving_out import staying
from service.operations.statements.call import Call
from service.operations.statements.staged_views import PlannedStage
from service.ports.records import NewJob
from service.protocol.plan import ScanType


async def own_graph_of(call: Call, new: NewJob, stages: Sequence[PlannedStage], strategy: Strategy) -> str | None:
    """Return why the job of a view stays in a graph of its own, or None if it does not."""
    if call.session.get("own_graph") == "true":
        return "the session variable own_graph is on"
    world = call.world
    async with world.stores.begin() as tx:
        parameters = SystemParameters.of(await tx.parameters.all())
        slow = await tx.queue.slow_view(call.asked_by.actor)
        found = [await tx.catalog.get(one) for one in sorted(new.upstreams)]
        entries = [entry for entry in found if entry is not None]
        of_others = await staying(tx, entries)
    if lakes := [entry.relation.name for entry in entries if entry.relation.lake is not None]:
        return reading_lake(lakes)
    if of_others:
        return reading(of_others)
    written = [(one.stage, one.target) for one in stages]
    rows = {entry.relation.id: entry.key_count for entry in entries}
    names = {entry.relation.id: entry.relation.name for entry in entries}
    whole = own_graph(written, rows, names, rows_max=parameters.own_graph_rows)
    # Jobs of other strategies wait until the time has flowed back, and a projection costs little.
    if whole is not None or strategy.scan_type is not ScanType.SNAPSHOT_BACKFILL or _is_projection(stages):
        return whole
    return None if slow is None else slow.keeps_apart(parameters.stage_timeout_ms, now=world.clock.now())


def _is_projection(stages: Sequence[PlannedStage]) -> bool:
    return len(stages) == 1 and stages[0].stage.is_projection
