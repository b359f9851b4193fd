"""The files that tasks prepare for a Delta table: Parquet, each with a note once it is whole.

Rows that become part of the table as they are get a file for each partition. Changes, which are merged by their key,
stay in the folder of their epoch. Next: `workers.connectors.deltalake`.
"""

import json
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.protocol.delta import STAGING, DeltaOptions
from service.protocol.ids import Epoch, Generation
from service.protocol.relation import Relation
from workers.connectors.delta_files import Files
from workers.connectors.delta_partitions import Values, check_partitions, folder_of, parted
from workers.connectors.port import RefusedRowError, RefusedTableError
from workers.state_store.port import OPERATION, PAGE, Written
from workers.state_store.wire import is_close

GROUP_BYTES: Final = 32 << 20
"""About how many bytes of rows a task gathers in memory, for all its files together."""
_NOTE: Final = ".json"
_MADE: Final = re.compile(r"(?!/)(?:(?!\.\.?/)[^/]*/)*tidefill-[0-9a-f]{16}\.parquet")
"""A file of rows, as tasks name it."""


@dataclass(frozen=True, slots=True)
class Note:
    """A file that a task has prepared in an epoch. `values` are those of its partition. Its rows take so many bytes of
    `memory`.
    """

    epoch: int
    path: str
    size: int
    rows: int
    values: Values
    memory: int = 0

    @property
    def merged(self) -> bool:
        """Whether its rows are changes."""
        return self.path.startswith(f"{STAGING}/")


def staged_in(options: DeltaOptions) -> str:
    """Return the folder of a sink. Readers of Delta pass over names that begin with an underscore."""
    return f"{STAGING}/{options.app}"


def notes_in(files: Files, folder: str, epoch: int) -> list[Note]:
    """Return the files that a generation, whose folder it is, has prepared in an epoch. Raises RefusedTableError for a
    note of another file, which somebody else has written.
    """
    here = f"{folder}/{epoch}"
    names = (name for name in files.names(here) if name.endswith(_NOTE))
    read = (json.loads(files.read(f"{here}/{name}")) for name in names)
    # An earlier release has not noted the bytes.
    notes = [
        Note(epoch, one["path"], one["size"], one["rows"], tuple(one["values"]), one.get("memory", 0)) for one in read
    ]
    for note in notes:
        change = note.merged and re.fullmatch(r"[0-9a-f]{16}\.parquet", note.path.removeprefix(f"{here}/"))
        if not change and not (not note.merged and _MADE.fullmatch(note.path)):
            raise RefusedTableError(f'a note in {here} names "{note.path}", which no task has made')
    return notes


@dataclass(frozen=True, slots=True)
class DeltaWriter:
    """Writes the files of tasks."""

    options: DeltaOptions
    generation: Generation

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """See `SinkWriter`."""
        names = [column.name for column in relation.delivered]
        folder = f"{staged_in(self.options)}/{self.generation}/{epoch}"
        made = gone = 0
        with _Prepared(self.options, folder) as files:
            for batch in rows:
                closes = is_close(batch)
                ended, kept = batch.filter(closes), batch.filter(pc.invert(closes))
                gone, made = gone + ended.num_rows, made + kept.num_rows
                if not self.options.upsert:
                    self._check(ended, relation)
                    files.append(kept.select(names))
                    continue
                pages = pc.equal(batch.column(OPERATION), pa.scalar(PAGE, pa.int8()))
                files.append(batch.filter(pages).select(names))
                files.change(batch.filter(pc.invert(pages)).select([OPERATION, *names]))
        return Written(inserted=made, closed=gone)

    def _check(self, ended: pa.RecordBatch, relation: Relation) -> None:
        if ended.num_rows and not self.options.force_append_only:
            raise RefusedRowError(
                f"a row of sink {relation.name} was updated or deleted, and the sink only appends: create it with"
                " type 'upsert', or with force_append_only 'true', which keeps old rows in the table"
            )


@dataclass
class _File:
    """A Parquet file while it is written. Rows are gathered to groups of some size."""

    files: Files
    path: str
    values: Values
    rows: int = 0
    gathered: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch])
    bytes: int = 0
    memory: int = 0
    _writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Gather rows."""
        self.gathered.append(rows)
        self.rows, self.bytes = self.rows + rows.num_rows, self.bytes + rows.nbytes
        self.memory += rows.nbytes

    def flush(self) -> None:
        """Write what was gathered as one group of rows."""
        if not self.gathered:
            return
        if self._writer is None:
            schema = self.gathered[0].schema
            self._writer = pq.ParquetWriter(self.path, schema, filesystem=self.files.system, compression="zstd")
        self._writer.write_table(pa.Table.from_batches(self.gathered))
        self.gathered, self.bytes = [], 0

    def close(self) -> None:
        """End the file, if it was begun."""
        if self._writer is not None:
            self._writer.close()


@dataclass
class _Prepared:
    """The files of one task in one epoch: rows to append, and changes to merge. Each is noted when it is whole."""

    options: DeltaOptions
    folder: str
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    _open: dict[str, _File] = field(default_factory=dict[str, _File])

    @cached_property
    def _files(self) -> Files:
        return Files.of(self.options)

    def append(self, rows: pa.RecordBatch) -> None:
        """Write rows that become part of the table as they are."""
        for values, some in parted(rows, self.options.partitions):
            self._write(f"{folder_of(self.options.partitions, values)}tidefill-{self.name}.parquet", values, some)

    def change(self, rows: pa.RecordBatch) -> None:
        """Write changes with their operations."""
        check_partitions(rows, self.options.partitions)
        self._write(f"{self.folder}/{self.name}.parquet", (), rows)

    def _write(self, path: str, values: Values, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if path not in self._open:
            self._files.make_folders(path)
            self._open[path] = _File(self._files, path, values)
        self._open[path].add(rows)
        if sum(one.bytes for one in self._open.values()) >= GROUP_BYTES:
            max(self._open.values(), key=lambda one: one.bytes).flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for place, file in enumerate(self._open.values()):
            if kind is not None:
                with suppress(OSError):
                    file.close()
                continue
            file.flush()
            file.close()
            size = self._files.info(file.path).size
            note = {"path": file.path, "size": size, "rows": file.rows, "values": file.values, "memory": file.memory}
            self._files.put(f"{self.folder}/{self.name}-{place}{_NOTE}", json.dumps(note).encode())
