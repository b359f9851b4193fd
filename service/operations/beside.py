"""What takes long to be read is read beside the loop: whoever waits for that, leases and barriers above all, is not to
wait for the text of a user.
"""

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

SHORT: Final = 1_000
"""Characters that take a few milliseconds, which is not worth a thread."""

P = ParamSpec("P")
T = TypeVar("T")


async def beside(text: str, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what reading a text gives; `read` is pure. Raises what it does."""
    if len(text) <= SHORT:
        return read(*args, **kwargs)
    return await asyncio.to_thread(read, *args, **kwargs)
