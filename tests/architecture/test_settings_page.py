"""The reference of the settings is what the source says, and says something of each."""

import pytest

from tests.support.settings_page import PAGE, page


def test_the_page_is_made_of_the_source() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.support.settings_page"


@pytest.mark.parametrize("line", [line for line in page().splitlines() if line.startswith("| `")])
def test_every_setting_is_explained(line: str) -> None:
    assert not line.endswith("|  |"), line
