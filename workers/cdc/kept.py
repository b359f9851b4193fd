"""Keep the messages of an incomplete answer between epochs, so that no message is requested twice."""

import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

KEPT_BYTES_MAX: Final = 1 << 30
"""How much of one answer is kept, on disk."""
MEMORY_BYTES_MAX: Final = 16 << 20
"""How much of that is kept in memory (I8)."""
_LENGTH: Final = struct.Struct("=I")


def _file() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES_MAX)


@dataclass
class Kept:
    """The received rows of an answer, in order, until the limit is reached."""

    size: int = 0
    _file: IO[bytes] = field(default_factory=_file)

    @property
    def full(self) -> bool:
        """Whether the limit is reached, so that `add` ignores further rows."""
        return self.size > KEPT_BYTES_MAX

    def add(self, rows: Sequence[bytes]) -> None:
        """Keep further rows, unless the limit is reached."""
        if not self.full:
            self.size += self._file.write(b"".join(piece for row in rows for piece in (_LENGTH.pack(len(row)), row)))

    def rows(self) -> Iterator[bytes]:
        """Yield all kept rows. `add` may be called again only after the last row."""
        self._file.seek(0)
        while length := self._file.read(_LENGTH.size):
            yield self._file.read(*_LENGTH.unpack(length))

    def close(self) -> None:
        """Delete the kept rows."""
        self._file.close()
