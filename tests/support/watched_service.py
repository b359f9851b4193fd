"""A service whose log tells of transactions that lock rows out of order.

Started by `python -m tests.support.watched_service`. The product knows nothing of it.
"""

import sys
from typing import Final

from service import bootstrap
from service.settings import read_settings
from tests.support.lock_order import Watch

OUT_OF_ORDER: Final = "LOCKED OUT OF ORDER: "


def tell(text: str) -> None:
    """Write a line to the log."""
    sys.stdout.write(f"{OUT_OF_ORDER}{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    Watch(tell).attach()
    bootstrap.serve(read_settings())
