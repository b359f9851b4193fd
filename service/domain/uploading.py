"""Bound uploads of rows: how slowly a body may arrive, and how much of the bodies is kept in files (I13)."""

from dataclasses import dataclass, field

from service.domain.errors import Invalid, Unavailable


@dataclass(slots=True)
class Patience:
    """How long the service still waits for the next bytes of a body.

    Waiting reduces it, and received bytes restore it up to its initial value. A body that began fast therefore may not
    slow to a trickle. The time in which the service does not read from the sender does not count.
    """

    seconds_max: float
    rate_min: float
    """Bytes that restore one second."""
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self.seconds = self.seconds_max

    def came(self, size: int, *, after: float) -> None:
        """Record that `size` bytes arrived after `after` seconds of waiting."""
        self.seconds = min(self.seconds_max, self.seconds - after + size / self.rate_min)


@dataclass(slots=True)
class Spool:
    """The total size of the files in which this process keeps bodies."""

    bytes_max: int = 16 << 30
    held: int = 0

    def take(self, size: int, *, before: int) -> None:
        """Count the next bytes of a body that has `before` bytes already.

        Raises Invalid if the body alone is too large, and Unavailable if it is too large together with other bodies.
        """
        limit = f"{self.bytes_max} bytes (TIDEFILL_LOAD_FILES_BYTES_MAX)"
        if before + size > self.bytes_max:
            raise Invalid(f"the body has more than the {limit} that are kept in files: load it in parts")
        if self.held + size > self.bytes_max:
            raise Unavailable(f"loads in progress fill the {limit} that are kept in files; try again later")
        self.held += size

    def give_back(self, size: int) -> None:
        """Subtract the bytes of a file that was deleted."""
        self.held -= size
