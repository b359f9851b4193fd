"""The pages. One line each: its address, its name in the menu, its template, and what reads its data."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from service.domain.roles import Role
from service.pages.asking import Ask
from service.pages.data import job, jobs, overview, sql


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
    Page("/sql", "SQL", "sql.html", sql.read),
)
