"""Sinks, and the relations of lakes: what their jobs do, and why one waits."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from service.operations.status.models import JobView
from service.operations.status.setbacks import setbacks
from service.pages.asking import Ask
from service.pages.data.jobs import Row, row
from service.pages.data.overview import all_jobs
from service.protocol.ids import JobId
from service.protocol.relation import RelationKind

_LAKE: Final = re.compile(r"connector\s*=\s*'deltalake'", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sinks:
    """Rows as on the page of jobs."""

    sinks: tuple[Row, ...]
    lake: tuple[Row, ...]
    moves: bool


async def read(ask: Ask) -> Sinks:
    """Read the jobs of sinks and of relations in a lake."""
    jobs = await all_jobs(ask.world)
    return sorted_out(jobs, ask.now, await setbacks(ask.world, jobs))


def sorted_out(jobs: Sequence[JobView], now: datetime, stuck: Mapping[JobId, str]) -> Sinks:
    """Return the jobs that are sinks, and the others whose statement names the lake's connector."""
    sinks = tuple(row(one, now, stuck.get(one.id)) for one in jobs if one.kind is RelationKind.SINK)
    others = [one for one in jobs if one.kind is not RelationKind.SINK and _LAKE.search(one.statement)]
    lake = tuple(row(one, now, stuck.get(one.id)) for one in others)
    return Sinks(sinks, lake, moves=any(one.bar is not None for one in (*sinks, *lake)))
