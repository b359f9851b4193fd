"""One Chromium for the tests of a module, none of which is asynchronous."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import running_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """A running Chromium. Playwright's event loop runs as long as it, and lets no other test have one."""
    with running_chromium() as browser:
        yield browser
