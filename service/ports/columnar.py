"""Reading Arrow and Parquet bodies where it can be given up."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from service.protocol.columns import Column


class ColumnarRows(Protocol):
    """The rows of an opened body."""

    @property
    def names(self) -> Sequence[str]:
        """The columns as the body has them."""
        ...

    def csv_of(self, columns: Sequence[Column]) -> AsyncGenerator[bytes]:
        """Yield the rows as CSV in the order of `columns`, which are all of the body's, once. Raises Invalid naming the
        row and column of a value that its column cannot keep exactly.
        """
        ...


class ColumnarBodies(Protocol):
    """Opens bodies that clients sent. What one of them unfolds to takes no memory of the service's, and what is behind
    it ends with the context.
    """

    def opened(self, path: Path, *, parquet: bool) -> AbstractAsyncContextManager[ColumnarRows]:
        """Open a Parquet file, or an Arrow IPC stream in a file. Raises Invalid where it is none, and where it takes
        too much memory or time to be read; Unavailable where too many others are being read.
        """
        ...
