"""Sinks, and the relations of lakes: what their jobs do, and why one waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from service.operations.status import lineage
from service.operations.status.lineage import LakeVersion, Member
from service.operations.status.models import JobView
from service.operations.status.setbacks import setbacks
from service.pages.asking import Ask
from service.pages.data.jobs import Row, row
from service.pages.data.overview import all_jobs
from service.protocol.ids import JobId, RelationId
from service.protocol.relation import RelationKind


@dataclass(frozen=True, slots=True)
class Sinks:
    """Rows as on the page of jobs. `places` are where the relations of the lake lie, by job, and `versions` those that
    have one.
    """

    sinks: tuple[Row, ...]
    lake: tuple[Row, ...]
    places: Mapping[int, str]
    versions: Mapping[int, LakeVersion]
    moves: bool


async def read(ask: Ask) -> Sinks:
    """Read the jobs of sinks and of relations in a lake."""
    jobs = await all_jobs(ask.world)
    members = (await lineage.lineage(ask.world)).members
    versions = await lineage.lake_versions(ask.world, members)
    return sorted_out(jobs, members, versions, ask.now, await setbacks(ask.world, jobs))


def sorted_out(
    jobs: Sequence[JobView],
    members: Sequence[Member],
    versions: Mapping[RelationId, LakeVersion],
    now: datetime,
    stuck: Mapping[JobId, str],
) -> Sinks:
    """Return the jobs that are sinks, and those whose relations lie in a lake."""
    in_lake = {one.job: one.location for one in members if one.job is not None and one.location is not None}
    sinks = tuple(row(one, now, stuck.get(one.id)) for one in jobs if one.kind is RelationKind.SINK)
    lake = tuple(row(one, now, stuck.get(one.id)) for one in jobs if one.id in in_lake)
    places = {int(job): location for job, location in in_lake.items()}
    known = {int(one.job): versions[one.id] for one in members if one.job is not None and one.id in versions}
    return Sinks(sinks, lake, places, known, moves=any(one.bar is not None for one in (*sinks, *lake)))
