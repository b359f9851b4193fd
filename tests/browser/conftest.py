"""One Chromium for all tests of pages in a known state."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import running_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def chromium() -> Iterator["Browser"]:
    """A running Chromium."""
    with running_chromium() as browser:
        yield browser
