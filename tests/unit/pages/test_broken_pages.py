"""A page that breaks is still a page, and says nothing of the inside."""

from service.api.middleware import BROKE
from tests.support.pages import pages


class Broken:
    """Stores that break, with words that nobody outside may read."""

    def begin(self, *_: object, **__: object) -> object:
        raise ArithmeticError("a word of the inside")


async def test_an_unexpected_error_is_answered_with_a_page() -> None:
    async with pages(Broken()) as http:
        page = await http.get("/jobs")
    assert page.status_code == 500
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src" in page.headers["content-security-policy"]
    assert BROKE in page.text
    assert "inside" not in page.text
