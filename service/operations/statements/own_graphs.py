"""Decide from the catalog whether the job of a new view stays in a graph of its own. See `service.domain.own_graph`."""

from collections.abc import Mapping, Sequence

from service.domain.own_graph import own_graph, reading, reading_lake
from service.domain.parameters import SystemParameters
from service.operations.jobs.moving_out import staying
from service.operations.statements.staged_views import PlannedStage
from service.operations.world import Context
from service.ports.records import NewJob


async def own_graph_of(
    world: Context, new: NewJob, stages: Sequence[PlannedStage], session: Mapping[str, str]
) -> str | None:
    """Return why the job of a view stays in a graph of its own, or None if it does not."""
    if session.get("own_graph") == "true":
        return "the session variable own_graph is on"
    async with world.stores.begin() as tx:
        limit = SystemParameters.of(await tx.parameters.all()).own_graph_rows
        found = [await tx.catalog.get(one) for one in sorted(new.upstreams)]
        entries = [entry for entry in found if entry is not None]
        of_others = await staying(tx, entries)
    if lakes := [entry.relation.name for entry in entries if entry.relation.lake is not None]:
        return reading_lake(lakes)
    if of_others:
        return reading(of_others)
    written = [(one.stage, one.target) for one in stages]
    rows = {entry.relation.id: entry.key_count for entry in entries}
    return own_graph(written, rows, {entry.relation.id: entry.relation.name for entry in entries}, rows_max=limit)
