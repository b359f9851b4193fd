"""Bound the requests to workers, which are independent of barriers."""

from typing import Final

REQUEST_TRIES_MAX: Final = 3
"""The maximum number of workers that get one request, because the request may be what kills them."""
