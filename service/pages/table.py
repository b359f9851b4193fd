"""The pages. One line each: its address, its name in the menu, its template, and what reads its data."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from service.domain.roles import Role
from service.pages.asking import Ask
from service.pages.data import (
    audit,
    barriers,
    events,
    job,
    jobs,
    overview,
    parameters,
    queue,
    relations,
    sinks,
    sources,
    sql,
    workers,
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page. One without a `menu` is reached by links. `role` is what its reader needs."""

    path: str
    menu: str | None
    template: str
    read: Callable[[Ask], Awaitable[object]]
    role: Role = Role.VIEWER


PAGES: Final = (
    Page("/", "Overview", "overview.html", overview.read),
    Page("/jobs", "Jobs", "jobs.html", jobs.read),
    Page("/jobs/{job}", None, "job.html", job.read),
    Page("/queue", "Queue", "queue.html", queue.read),
    Page("/relations", "Relations", "relations.html", relations.read),
    Page("/relation", None, "relation.html", relations.read_one),
    Page("/sources", "Sources", "sources.html", sources.read),
    Page("/sinks", "Sinks and lake", "sinks.html", sinks.read),
    Page("/barriers", "Barriers", "barriers.html", barriers.read),
    Page("/workers", "Workers", "workers.html", workers.read),
    Page("/events", "Events", "events.html", events.read),
    Page("/audit", "Audit", "audit.html", audit.read),
    Page("/parameters", "Parameters", "parameters.html", parameters.read),
    Page("/sql", "SQL", "sql.html", sql.read),
)
