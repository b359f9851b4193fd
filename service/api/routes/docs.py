"""`/docs`: the OpenAPI document to read and try in a browser, from files that come with the service: no CDN."""

from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response

router = APIRouter(include_in_schema=False)

_PACKAGE: Final = "fastapi_offline"
_TYPES: Final = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
_HEADERS: Final = {
    # The page can call the service: no other page may show it in a frame, and it loads nothing from elsewhere.
    "Content-Security-Policy": "default-src 'self' data: 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


@router.get("/docs")
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


@router.get("/docs/{name}")
async def show_documentation_file(name: str) -> Response:
    """Send a file of the page."""
    if name not in _TYPES:
        return Response(status_code=404)
    content = (files(_PACKAGE) / "static" / name).read_bytes()
    return Response(content, media_type=_TYPES[name], headers={**_HEADERS, "Cache-Control": "max-age=86400"})
