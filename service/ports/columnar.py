"""Read Arrow, Parquet and NDJSON bodies in a process that can be ended."""

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
        """The columns of the body, in its order. Empty for NDJSON, whose rows name their columns."""
        ...

    def csv_of(self, columns: Sequence[Column]) -> AsyncGenerator[bytes]:
        """Yield the rows as CSV, once. `columns` are all columns of the body, in the order of the CSV.

        The process that reads the body ends after the last row. Raises Invalid with row and column for a value that its
        column cannot keep exactly.
        """
        ...


class ColumnarBodies(Protocol):
    """Opens clients' bodies. They are decompressed outside the service's memory, in a process that ends at the latest
    with the context.
    """

    def opened(self, path: Path, form: FileForm) -> AbstractAsyncContextManager[ColumnarRows]:
        """Open a file of this format. Arrow means an IPC stream.

        Raises Invalid if the file has another format or needs too much memory or time, and Unavailable if too many
        files are being read.
        """
        ...
