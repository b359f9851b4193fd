"""Make HTML of data and templates. Everything is escaped; no template calls `safe`."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from service.domain.roles import Role, permits
from service.domain.words import capital, span, speed
from service.pages import words
from service.pages.notices import PARAMETER, Notices
from service.pages.table import PAGES
from service.ports.audit import Asker
from service.turns import Turns

TYPES: Final = MappingProxyType(
    {
        "app.css": "text/css; charset=utf-8",
        "app.js": "text/javascript; charset=utf-8",
        "icon.svg": "image/svg+xml",
        "vendor/htmx.min.js": "text/javascript; charset=utf-8",
        "vendor/sse.min.js": "text/javascript; charset=utf-8",
    }
)
"""The files that pages load, with their media types."""
POLL_SECONDS: Final = 3
"""How often a page on which something moves is read again. Checkpoints are a second apart and no events."""
IDLE_SECONDS: Final = 15
"""How often another page is read again, for what no event tells."""
PAGES_AT_ONCE: Final = 4


@cache
def static(name: str) -> bytes:
    """Return a file of `TYPES`."""
    return (files("service.pages") / "static").joinpath(*name.split("/")).read_bytes()


@cache
def version(name: str) -> str:
    """Return the digest of a file, which is in its address, so that browsers may keep the file for ever."""
    return hashlib.sha256(static(name)).hexdigest()[:16]


@cache
def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=PackageLoader("service.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        capital=capital,
        instant=words.instant,
        millis=words.millis,
        number=words.number,
        size=words.size,
        span=span,
        speed=speed,
    )
    shared: dict[str, Any] = {"version": version, "menu": [page for page in PAGES if page.menu]}
    made.globals.update(shared)
    return made


async def aside(request: Request, template: str, made: Callable[[], object], **more: Any) -> HTMLResponse:
    """Do as `page` with what `made` returns, in a thread: the texts of a large table would stop the event loop (I13).

    A caller has one such thread, because each takes its share of the interpreter from the event loop.
    """
    turns: Turns = request.app.state.turns
    async with turns.turn():
        return await asyncio.to_thread(lambda: page(request, template, made(), **more))


def turns_of_pages() -> Turns:
    """Return the turns of `aside`. A caller that has many pages made waits for its own."""
    return Turns("pages", running=PAGES_AT_ONCE, waiting=1_000, each=1)


def page(request: Request, template: str, data: object, *, status: int = 200, **more: Any) -> HTMLResponse:
    """Return a page for the caller of a request: `data` as `page`, and what every page needs."""
    text = environment().get_template(template).render(page=data, **_around(request), **more)
    return HTMLResponse(text, status)


def _around(request: Request) -> Mapping[str, Any]:
    state = request.state
    caller: Asker | None = getattr(state, "caller", None)
    notices: Notices = request.app.state.notices
    key = request.query_params.get(PARAMETER, "")
    return {
        "base": getattr(state, "base", ""),
        "path": request.url.path,
        "here": _here(request),
        "csrf": state.csrf,
        "caller": caller,
        "operator": caller is not None and permits(caller.role, Role.OPERATOR),
        "admin": caller is not None and permits(caller.role, Role.ADMIN),
        "session": getattr(state, "session", None) is not None,
        "notice": notices.get(key) if key else None,
        "poll": POLL_SECONDS,
        "idle": IDLE_SECONDS,
    }


def _here(request: Request) -> str:
    """Return the address of the page without its notice, which is shown once."""
    kept = [(name, value) for name, value in request.query_params.multi_items() if name != PARAMETER]
    address = getattr(request.state, "base", "") + quote(request.scope["path"])
    return f"{address}?{urlencode(kept)}" if kept else address
