"""Take the picture of the overview that the documents show, of a service that runs: `make demo KEEP=1`, then this.

`python -m tests.support.pictures http://127.0.0.1:8700`
"""

import sys
from pathlib import Path
from typing import Final

from tests.support.browser import running_chromium

FOLDER: Final = Path(__file__).parents[2] / "docs/pages"
_WIDTH, _HEIGHT = 1280, 640


def take(url: str) -> None:
    """Write the picture."""
    FOLDER.mkdir(exist_ok=True)
    with running_chromium() as browser:
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme="light")
        page.goto(url)
        page.screenshot(path=FOLDER / "overview.png", full_page=True)


if __name__ == "__main__":
    take(sys.argv[1])
