"""Messages of the log that came in an epoch which went on without the rest: kept, so that none is asked for twice."""

import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

KEPT_BYTES_MAX: Final = 1 << 30
"""How much is kept of one answer, on disk;"""
MEMORY_BYTES_MAX: Final = 16 << 20
"""and how much of that in memory (I8)."""
_LENGTH: Final = struct.Struct("=I")


def _file() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES_MAX)


@dataclass
class Kept:
    """The rows that have come of an answer, in their order, until it is full."""

    size: int = 0
    _file: IO[bytes] = field(default_factory=_file)

    @property
    def full(self) -> bool:
        """Whether no more is kept."""
        return self.size > KEPT_BYTES_MAX

    def add(self, rows: Sequence[bytes]) -> None:
        """Keep some more, unless it is full."""
        if not self.full:
            self.size += self._file.write(b"".join(piece for row in rows for piece in (_LENGTH.pack(len(row)), row)))

    def rows(self) -> Iterator[bytes]:
        """Give all that is kept; more can be added only after the last of it was given."""
        self._file.seek(0)
        while length := self._file.read(_LENGTH.size):
            yield self._file.read(*_LENGTH.unpack(length))

    def close(self) -> None:
        """Forget them."""
        self._file.close()
