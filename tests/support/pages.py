"""The pages on a world of one's choice, called in the same process."""

import html
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Final, cast

import httpx
from fastapi import FastAPI

from service.api.app import create_app
from service.api.settings import ApiSettings
from service.pages.app import install
from service.ports.meta_store import Stores
from tests.support.http import OPEN, Absent, Checks, world_of

BROWSER: Final = {"accept": "text/html", "origin": "http://localhost"}
_CSRF: Final = re.compile(r'name="csrf" value="([^"]+)"')
_TAGS: Final = re.compile(r"<[^>]*>")


@cache
def _app(settings: ApiSettings, base: str) -> FastAPI:
    """One app for each settings: making it takes longer than a test, and the world can be put in afterwards."""
    app = create_app(world_of(cast("Stores", Absent())), settings=settings, ready=Checks())
    install(app, settings, base=base)
    return app


@asynccontextmanager
async def pages(
    stores: object, *, settings: ApiSettings = OPEN, checks: Checks | None = None, base: str = "", **ports: object
) -> AsyncGenerator[httpx.AsyncClient]:
    """Open the pages on a world of these stores, for a browser of this machine."""
    app = _app(settings, base)
    app.state.world = world_of(cast("Stores", stores), **ports)
    app.state.ready = checks or Checks()
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=BROWSER) as http:
        yield http


def text_of(page: httpx.Response) -> str:
    """Return what a page says, without its tags."""
    assert page.status_code < 400, page.text
    return " ".join(html.unescape(_TAGS.sub(" ", page.text)).split())


def csrf_of(page: httpx.Response) -> str:
    """Return the CSRF token of the forms of a page."""
    found = _CSRF.search(page.text)
    assert found is not None, page.text
    return found[1]


async def send(http: httpx.AsyncClient, path: str, page: str = "/", **fields: str) -> httpx.Response:
    """Send a form as it stands on `page`, and return the page to which it leads."""
    csrf = csrf_of(await http.get(page))
    return await http.post(path, data={"csrf": csrf, **fields}, follow_redirects=True)
