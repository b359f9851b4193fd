"""Write durations, rates and states as people read them, in a terminal and in a browser."""

from typing import Final

UNLIMITED: Final = "unlimited"
"""A limit that is not set, as users type it too."""


def span(seconds: float | None) -> str:
    """Return a duration in seconds as `1:02:03` or `2:03`; a dash if it is not known."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def capital(state: str) -> str:
    """Return a state as it is shown: `Running` of `RUNNING`, and `Not ready` of `not ready`."""
    return state.capitalize() if state.isupper() else state[:1].upper() + state[1:]


def speed(rows_per_second: float) -> str:
    """Return a rate as text."""
    return f"{rows_per_second:,.0f} rows/s"
