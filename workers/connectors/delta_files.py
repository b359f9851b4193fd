"""The files of a Delta table: in a folder that all workers reach, or in an object store that speaks S3.

Both are one file system of Arrow, with the credentials that `delta_table` has. Paths are relative to the table. An
object store has no folders and no renaming, and shows an object when it is whole.
"""

import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from service.protocol.delta import DeltaPlace, ObjectStore

CONNECT_SECONDS: Final = 5
REQUEST_SECONDS: Final = 20
_COLOUR: Final = re.compile(r"\x1b\[\d*m↳?")
TRIES: Final = 3
"""An object store that is away is tried again by the next generation, which says so."""


def storage_options(store: ObjectStore | None) -> dict[str, str] | None:
    """Return what delta-rs needs to reach the object store."""
    if store is None:
        return None
    options = {
        "aws_region": store.region,
        "aws_access_key_id": store.access_key,
        "aws_secret_access_key": store.secret_key,
        # A commit is a new object, which is refused where there is one already.
        "conditional_put": "etag",
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "timeout": f"{REQUEST_SECONDS}s",
        "max_retries": str(TRIES - 1),
        "retry_timeout": f"{REQUEST_SECONDS}s",
    }
    if store.endpoint is not None:
        allowed = str(store.endpoint.startswith("http://")).lower()
        options |= {"aws_endpoint_url": store.endpoint, "aws_allow_http": allowed}
    return options


def delta_table(place: DeltaPlace, version: int | None = None) -> DeltaTable:
    """Return the table in a version, or its newest. Raises TableNotFoundError, and OSError if its storage is away."""
    return DeltaTable(place.location, version=version, storage_options=storage_options(place.store))


@contextmanager
def in_a_line() -> Generator[None]:
    """Have an error of delta-rs, which fills several coloured lines, say it in one."""
    try:
        yield
    except (OSError, DeltaError) as error:
        if "\n" in str(error):
            error.args = (" ".join(_COLOUR.sub("", str(error)).split()),)
        raise


@dataclass(frozen=True, slots=True)
class Stamp:
    """The size of a file in bytes, and when it was written, in Unix nanoseconds."""

    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one table."""

    system: pa_fs.FileSystem
    root: str | None
    """The folder, None in an object store."""

    @property
    def in_store(self) -> bool:
        """Whether they are in an object store."""
        return self.root is None

    @classmethod
    def of(cls, place: DeltaPlace) -> "Files":
        """Return the files of a table. Nothing is reached yet."""
        store = place.store
        if store is None:
            return cls(pa_fs.SubTreeFileSystem(place.location, pa_fs.LocalFileSystem()), place.location)
        return cls(pa_fs.SubTreeFileSystem(place.location.removeprefix("s3://"), _object_store(store)), None)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in order; none if there is no folder."""
        found: Any = self.system.get_file_info(pa_fs.FileSelector(folder, allow_not_found=True))
        return sorted(one.base_name for one in found)

    def there(self, path: str) -> bool:
        """Whether there is such a file."""
        found: Any = self.system.get_file_info(path)
        return found.type is not pa_fs.FileType.NotFound

    def info(self, path: str) -> pa_fs.FileInfo:
        """Return size and time of a file. Raises FileNotFoundError if somebody removed it."""
        found: Any = self.system.get_file_info(path)
        if found.type is pa_fs.FileType.NotFound:
            raise FileNotFoundError(path)
        return found

    def stamp(self, path: str) -> "Stamp":
        """Return what tells whether a file is still the same. Raises FileNotFoundError."""
        return self.stamp_of(self.info(path))

    def stamp_of(self, info: Any) -> "Stamp":
        """Return the stamp of a file that was found. A list of objects may know their times better than they do."""
        modified = info.mtime_ns or 0
        return Stamp(info.size or 0, modified // 10**9 * 10**9 if self.in_store else modified)

    def opened(self, path: str) -> pa.NativeFile:
        """Open a file to read it. Raises OSError, also for what is no file or lies elsewhere (I13).

        A path of a table's log, and a link, may lead anywhere; and nothing ever comes out of a FIFO.
        """
        if self.root is not None:
            real = Path(os.path.realpath(f"{self.root}/{path}"))
            if not real.is_relative_to(os.path.realpath(self.root)):
                raise PermissionError(f'"{path}" leads out of {self.root}')
            if not stat.S_ISREG(real.stat().st_mode):
                raise PermissionError(f'"{path}" in {self.root} is no file')
        return self.system.open_input_file(path)

    def _own(self, path: str) -> str:
        """Return the path of a file that is written or removed. Raises PermissionError if it lies elsewhere (I13).

        Everybody who may write into the folder can make notes and links.
        """
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise PermissionError(f'"{path}" is no path in the table')
        if self.root is not None:
            real = Path(os.path.realpath(Path(self.root, path).parent))
            if not real.is_relative_to(os.path.realpath(self.root)):
                raise PermissionError(f'"{path}" leads out of {self.root}')
        return path

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises as `opened` does."""
        with self.opened(path) as file:
            return file.read()

    def table(self, path: str) -> pa.Table:
        """Return the rows of a Parquet file. Raises as `opened` does."""
        with self.opened(path) as file:
            return pq.read_table(file, partitioning=None)

    def make_folders(self, path: str) -> None:
        """Make the folders of a file. Not that of the table: a target that is away would be made anew, and hidden when
        it is back.
        """
        if not self.in_store:
            for one in reversed(PurePosixPath(path).parents[:-1]):
                self.system.create_dir(self._own(str(one)), recursive=False)
            self._own(path)

    def put(self, path: str, content: bytes) -> None:
        """Write a file that is there as a whole or not at all."""
        self.make_folders(path)
        written = path if self.in_store else f"{path}.part"
        if not self.in_store:
            self.remove(written)  # a link would lead elsewhere
        with self.system.open_output_stream(written) as stream:
            stream.write(content)
        if not self.in_store:
            self.system.move(written, path)

    def remove(self, path: str) -> None:
        """Remove a file if it is there."""
        try:
            self.system.delete_file(self._own(path))
        except FileNotFoundError:
            return

    def removed(self, path: str) -> bool:
        """Remove a file, unless it lies elsewhere. Return whether it is gone."""
        try:
            self._own(path)
        except PermissionError:
            return False
        self.remove(path)
        return True

    def remove_folder(self, path: str) -> None:
        """Remove a folder with all that is in it, if it is there."""
        try:
            self.system.delete_dir(self._own(path))
        except FileNotFoundError:
            return

    def clear(self) -> None:
        """Remove everything below the table's folder, the log last: without it, what is left is nobody's."""
        every: Any = self.system.get_file_info(pa_fs.FileSelector("", allow_not_found=True))
        for one in sorted(every, key=lambda one: one.base_name == "_delta_log"):
            remove = self.remove_folder if one.type is pa_fs.FileType.Directory else self.remove
            remove(one.base_name)


def _object_store(store: ObjectStore) -> pa_fs.FileSystem:
    place = urlsplit(store.endpoint or "")
    return pa_fs.S3FileSystem(
        access_key=store.access_key,
        secret_key=store.secret_key,
        region=store.region,
        scheme=place.scheme or "https",
        endpoint_override=place.netloc or None,
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        retry_strategy=pa_fs.AwsStandardS3RetryStrategy(max_attempts=TRIES),
        # A small file is one request.
        allow_delayed_open=True,  # pyright: ignore[reportCallIssue] - newer than the stubs
    )
