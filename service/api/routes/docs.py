"""`/openapi.json`, and `/docs` to read and try it in a browser. All files come with the service, not from a CDN.

No token is needed. Each document is made once and sent in slices, so a client that does not read occupies one slice.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse

from service.api.access import needs

router = APIRouter(include_in_schema=False)

_PACKAGE: Final = "fastapi_offline"
_TYPES: Final = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
_HEADERS: Final = {
    # The page can call the service. Therefore no other page may frame it, and it loads nothing from elsewhere.
    "Content-Security-Policy": "default-src 'self' data: 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


_SLICE_BYTES: Final = 64 << 10


_WELCOME: Final = """\
This is tidefill.

  /docs              every route of the API, to read and try in a browser
  /openapi.json      the same for programs
  /readyz            whether the service is ready, and what it waits for
  /v1/jobs           what is being built

On the command line: tidefill status, tidefill sql, tidefill --help.
"""


@router.get("/", dependencies=needs(None))
async def show_welcome() -> PlainTextResponse:
    """Say what this is and where to go on."""
    return PlainTextResponse(_WELCOME)


@router.get("/openapi.json", dependencies=needs(None))
async def show_document(request: Request) -> Response:
    """Send the OpenAPI document."""
    state = request.app.state
    if not hasattr(state, "document"):
        # In a thread, because the document takes a second to make.
        state.document = asyncio.create_task(asyncio.to_thread(lambda: json.dumps(request.app.openapi()).encode()))
    return _sent(await asyncio.shield(state.document), {"Content-Type": "application/json"})


@router.get("/docs", dependencies=needs(None))
async def show_documentation() -> HTMLResponse:
    """Show Swagger UI on the document."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="tidefill",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
    )
    page.headers.update(_HEADERS)
    return page


@router.get("/docs/{name}", dependencies=needs(None))
async def show_documentation_file(name: str) -> Response:
    """Send a file of the page."""
    if name not in _TYPES:
        return Response(status_code=404)
    return _sent(_file(name), {**_HEADERS, "Content-Type": _TYPES[name], "Cache-Control": "max-age=86400"})


@cache
def _file(name: str) -> bytes:
    return (files(_PACKAGE) / "static" / name).read_bytes()


def _sent(content: bytes, headers: Mapping[str, str]) -> Response:
    # A synchronous generator, because Starlette then yields to the event loop for each slice.
    def slices() -> Iterator[bytes]:
        for start in range(0, len(content), _SLICE_BYTES):
            yield content[start : start + _SLICE_BYTES]

    return StreamingResponse(slices(), headers={**headers, "Content-Length": str(len(content))})
