"""Sinks, and the relations of lakes: what their jobs do, and why one waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from service.operations.status import lineage
from service.operations.status.models import JobView
from service.operations.status.setbacks import setbacks
from service.pages.asking import Ask
from service.pages.data.jobs import Row, row
from service.pages.data.overview import all_jobs
from service.protocol.ids import JobId
from service.protocol.relation import RelationKind


@dataclass(frozen=True, slots=True)
class Sinks:
    """Rows as on the page of jobs. `places` are where the relations of the lake lie, by job."""

    sinks: tuple[Row, ...]
    lake: tuple[Row, ...]
    places: Mapping[int, str]
    moves: bool


async def read(ask: Ask) -> Sinks:
    """Read the jobs of sinks and of relations in a lake."""
    jobs = await all_jobs(ask.world)
    members = (await lineage.lineage(ask.world)).members
    in_lake = {one.job: one.location for one in members if one.job is not None and one.location is not None}
    return sorted_out(jobs, in_lake, ask.now, await setbacks(ask.world, jobs))


def sorted_out(
    jobs: Sequence[JobView], in_lake: Mapping[JobId, str], now: datetime, stuck: Mapping[JobId, str]
) -> Sinks:
    """Return the jobs that are sinks, and those whose relations lie in a lake."""
    sinks = tuple(row(one, now, stuck.get(one.id)) for one in jobs if one.kind is RelationKind.SINK)
    lake = tuple(row(one, now, stuck.get(one.id)) for one in jobs if one.id in in_lake)
    places = {int(job): location for job, location in in_lake.items()}
    return Sinks(sinks, lake, places, moves=any(one.bar is not None for one in (*sinks, *lake)))
