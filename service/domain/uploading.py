"""Bodies of rows on their way in: how slowly one may come, and how much of them is kept in files (I13)."""

from dataclasses import dataclass, field

from service.domain.errors import Invalid, Unavailable


@dataclass(slots=True)
class Patience:
    """How long this service still waits for the next bytes of a body. Waiting uses it up, bytes that come restore it,
    and there is never more of it than at first: a body that began fast may not trickle afterwards. The time in which
    this service does not ask for bytes is not the sender's and does not count.
    """

    seconds_max: float
    rate_min: float
    """Bytes that restore a second."""
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self.seconds = self.seconds_max

    def came(self, size: int, *, after: float) -> None:
        """Take in that so many bytes came after so many seconds of waiting."""
        self.seconds = min(self.seconds_max, self.seconds - after + size / self.rate_min)


@dataclass(slots=True)
class Spool:
    """The files in which this process keeps bodies, taken together."""

    bytes_max: int = 16 << 30
    held: int = 0

    def take(self, size: int, *, before: int) -> None:
        """Count the next bytes of a body that has `before` already. Raises Invalid where it is too large by itself,
        Unavailable where it is so together with others.
        """
        limit = f"{self.bytes_max} bytes (TIDEFILL_LOAD_FILES_BYTES_MAX)"
        if before + size > self.bytes_max:
            raise Invalid(f"the body has more than the {limit} that are kept in files: load it in parts")
        if self.held + size > self.bytes_max:
            raise Unavailable(f"loads in progress fill the {limit} that are kept in files; try again later")
        self.held += size

    def give_back(self, size: int) -> None:
        """Count the bytes of a file that is gone."""
        self.held -= size
