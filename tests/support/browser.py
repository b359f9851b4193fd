"""Pages in a real Chromium. What the console says, a broken policy of contents, and a failing script fail the test."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium
    from playwright.sync_api import Page

AXE: Final = Path(__file__).parents[1] / "browser/vendor/axe.min.js"
PROGRAM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE_MS: Final = 60_000
"""How long a page may take to show something: the machine may be busy with other things."""
Scheme = Literal["light", "dark"]


@contextmanager
def running_chromium() -> Generator["Chromium"]:
    """A Chromium, or a skipped test where there is none."""
    if PROGRAM is None:
        pytest.skip("there is no chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Reader:
    """Someone who reads pages at `url`. `faults` are what the console said."""

    page: "Page"
    url: str
    faults: list[str] = field(default_factory=list[str])
    expected: tuple[str, ...] = ()
    """Parts of the faults that the test brings about."""

    def go(self, path: str) -> "Page":
        """Open a page."""
        self.page.goto(f"{self.url}{path}")
        return self.page

    def log_in(self, token: str) -> None:
        """Log in from the page of the login."""
        self.go("/login")
        self.page.get_by_label("API token or JWT").fill(token)
        self.press("Log in")

    def press(self, name: str) -> None:
        """Press a button and wait for the page to which it leads."""
        with self.page.expect_navigation():
            self.page.get_by_role("button", name=name, exact=True).click()

    def check(self) -> None:
        """Assert that no page has complained."""
        unexpected = [one for one in self.faults if not any(part in one for part in self.expected)]
        assert not unexpected, unexpected

    def violations(self) -> list[str]:
        """Return what axe finds on the page as it is."""
        self.page.evaluate(AXE.read_text())
        found: dict[str, Any] = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [f"{one['id']}: {node['target']}" for one in found["violations"] for node in one["nodes"]]


@contextmanager
def reading(chromium: "Chromium", url: str, *, scheme: Scheme = "light", width: int = 1280) -> Generator[Reader]:
    """Open a fresh browser window, and check at the end what its console said."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE_MS)
    try:
        page = context.new_page()
        reader = Reader(page, url)
        page.on("console", lambda said: reader.faults.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: reader.faults.append(str(error)))
        yield reader
        reader.check()
    finally:
        context.close()
