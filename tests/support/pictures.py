"""Take the pictures of pages that the documents show, of a service that runs: `make demo KEEP=1`, then this.

`python -m tests.support.pictures http://127.0.0.1:8700 revenue` takes those of the overview and of a job.
"""

import sys
from pathlib import Path
from typing import Final

from tests.support.browser import running_chromium

FOLDER: Final = Path(__file__).parents[2] / "docs/pages"
_WIDTH, _HEIGHT = 1120, 640


def take(url: str, job: str) -> None:
    """Write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    with running_chromium() as browser:
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme="light")
        for name, path in (("overview", "/"), ("job", f"/jobs/{job}")):
            page.goto(f"{url}{path}")
            page.screenshot(path=FOLDER / f"{name}.png", full_page=name == "overview")


if __name__ == "__main__":
    take(*sys.argv[1:3])
