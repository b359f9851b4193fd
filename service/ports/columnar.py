"""Reading Arrow, Parquet and NDJSON bodies where it can be given up."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from service.protocol.columns import Column

FileForm: TypeAlias = Literal["arrow", "parquet", "ndjson"]


class ColumnarRows(Protocol):
    """The rows of an opened body."""

    @property
    def names(self) -> Sequence[str]:
        """The columns as the body has them; none of NDJSON, whose rows name theirs."""
        ...

    def csv_of(self, columns: Sequence[Column]) -> AsyncGenerator[bytes]:
        """Yield the rows as CSV in the order of `columns`, which are all of the body's, once. Raises Invalid naming the
        row and column of a value that its column cannot keep exactly. What is behind the body ends with its last row.
        """
        ...


class ColumnarBodies(Protocol):
    """Opens bodies that clients sent. What one of them unfolds to takes no memory of the service's, and what is behind
    it ends with the context at the latest.
    """

    def opened(self, path: Path, form: FileForm) -> AbstractAsyncContextManager[ColumnarRows]:
        """Open a file of that form; Arrow is the IPC stream. Raises Invalid where it is none, and where it takes
        too much memory or time to be read; Unavailable where too many others are being read.
        """
        ...
