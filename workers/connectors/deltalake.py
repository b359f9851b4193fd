"""The connector `deltalake`: a sink into a Delta table, in which every net change is there once (I14).

Tasks write Parquet files and a note of each into `<location>/_tidefill/<app>/<generation>/<epoch>`. When the meta store
has committed an epoch, one commit of Delta makes its files part of the table, and stores the epoch as the version of
the app's transaction. So the table knows up to which epoch it has everything, and a delivery that is repeated, or that
an old generation makes late, finds its epoch there or is refused by Delta.

Rows of history and of an append-only sink are appended as files. Changes of an upsert sink are merged by their key.
An old generation may prepare files at any time. So each generation delivers first what the generations before it have
prepared and committed, and then marks its beginning: what is prepared under an older number is never looked at again.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from shutil import rmtree
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from service.protocol import delta
from service.protocol.delta import DeltaOptions
from service.protocol.ids import Epoch, Generation
from service.protocol.relation import Relation
from workers.connectors.port import RefusedRowError
from workers.state_store.port import CLOSE, OPERATION, PAGE, Written
from workers.state_store.wire import is_close

GROUP_BYTES: Final = 32 << 20
"""About how many bytes of rows are one group of a file. A task gathers so many in memory."""
_STAGING: Final = "_tidefill"
_BEGAN: Final = "began"
_GONE: Final = "_tidefill_gone"
_PLACE: Final = "_tidefill_place"
_NOTE: Final = ".json"


def claim(options: Mapping[str, str], relation: Relation) -> None:
    """Create the table, or check that the one that is there can be used. Raises ValueError with the reason."""
    read = _options(options, relation)
    location, wanted = Path(read.location), Schema.from_json(delta.delta_schema(relation.visible))
    try:
        location.mkdir(parents=True, exist_ok=True)
        # Whoever may not write learns it now.
        (location / _STAGING).mkdir(exist_ok=True)
        if not DeltaTable.is_deltatable(read.location):
            if any(one.name != _STAGING for one in location.iterdir()):
                raise ValueError(f"{location} is not empty, and no Delta table")
            DeltaTable.create(read.location, wanted, description=f"sink {relation.name}")
            return
        table = DeltaTable(read.location)
        found = {one.name: one.type for one in table.schema().fields}
        if found != {one.name: one.type for one in wanted.fields}:
            columns = ", ".join(f"{one.name} {one.type}" for one in wanted.fields)
            raise ValueError(f"the table at {location} has other columns: the sink has {columns}")
        if table.metadata().partition_columns:
            raise ValueError(f"the table at {location} is partitioned, and the sink's files are not")
        if read.upsert and table.file_uris():
            raise ValueError(f"the table at {location} has rows already: an upsert sink begins with an empty one")
    except (OSError, DeltaError) as error:
        raise ValueError(f"{location} cannot be used by the worker: {error}") from error


@dataclass(frozen=True, slots=True)
class DeltaWriter:
    """Writes the files of tasks."""

    options: DeltaOptions
    generation: Generation

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """See `SinkWriter`."""
        names = [column.name for column in relation.visible]
        folder = _staged(self.options) / str(self.generation) / str(epoch)
        made = gone = 0
        with _Files(self.options, folder) as files:
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

    path: Path
    writer: pq.ParquetWriter
    rows: int = 0
    gathered: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch])

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self.rows += rows.num_rows
        self.gathered.append(rows)
        if sum(one.nbytes for one in self.gathered) >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered as one group of rows."""
        if self.gathered:
            self.writer.write_table(pa.Table.from_batches(self.gathered))
            self.gathered = []


@dataclass
class _Files:
    """The files of one task in one epoch: rows to append, and changes to merge. Each is noted when it is whole."""

    options: DeltaOptions
    folder: Path
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    _open: dict[Path, _File] = field(default_factory=dict[Path, _File])

    def append(self, rows: pa.RecordBatch) -> None:
        """Write rows that become part of the table as they are."""
        self._write(Path(self.options.location) / f"tidefill-{self.name}.parquet", rows)

    def change(self, rows: pa.RecordBatch) -> None:
        """Write changes with their operations."""
        self._write(self.folder / f"{self.name}.parquet", rows)

    def _write(self, path: Path, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if path not in self._open:
            # Not the folders above: a target that is away would be written anew, and hidden when it is back.
            self.folder.parent.mkdir(exist_ok=True)
            self.folder.mkdir(exist_ok=True)
            self._open[path] = _File(path, pq.ParquetWriter(path, rows.schema, compression="zstd"))
        self._open[path].write(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for place, file in enumerate(self._open.values()):
            if kind is None:
                file.flush()
            file.writer.close()
            if kind is None:
                note = {"path": str(file.path), "size": file.path.stat().st_size, "rows": file.rows}
                part = self.folder / f"{self.name}-{place}"
                part.write_text(json.dumps(note))
                # A note is there as a whole or not at all.
                part.rename(part.with_suffix(_NOTE))


@dataclass(frozen=True, slots=True)
class _Note:
    """A file that a task has prepared in an epoch."""

    epoch: int
    path: Path
    size: int
    rows: int

    def action(self) -> AddAction:
        """Return the action that makes it part of the table. Raises FileNotFoundError if somebody removed it."""
        modified = int(self.path.stat().st_mtime * 1000)
        stats = json.dumps({"numRecords": self.rows})
        return AddAction(self.path.name, self.size, {}, modified, data_change=True, stats=stats)


@dataclass(frozen=True)
class DeltaSink:
    """A sink in one generation."""

    options: DeltaOptions
    relation: Relation
    generation: Generation

    @classmethod
    def of(cls, options: Mapping[str, str], relation: Relation, generation: Generation) -> "DeltaSink":
        """Return the sink. The service has checked the options."""
        return cls(_options(options, relation), relation, generation)

    @property
    def commit_seconds(self) -> float:
        """See `Sink`."""
        return self.options.commit_seconds

    @property
    def writer(self) -> DeltaWriter:
        """See `Sink`."""
        return DeltaWriter(self.options, self.generation)

    def begin(self, committed: Epoch) -> None:
        """See `Sink`."""
        staged = _staged(self.options)
        DeltaTable(self.options.location)  # raises an error if it is away
        (staged / _BEGAN).mkdir(parents=True, exist_ok=True)
        newest = max(_numbers(staged / _BEGAN), default=0)
        older = [one for one in _numbers(staged) if one < self.generation]
        for generation in older:
            if generation >= newest:
                self._deliver(generation, committed)
        (staged / _BEGAN / str(self.generation)).touch()
        for generation in older:
            self._discard(staged / str(generation))

    def commit(self, upto: Epoch) -> None:
        """See `Sink`."""
        self._deliver(self.generation, upto)

    def clean_up(self) -> None:
        """See `Sink`."""
        staged = _staged(self.options)
        for generation in _numbers(staged):
            self._discard(staged / str(generation))
        rmtree(staged, ignore_errors=True)

    def consumed_upto(self, table: DeltaTable) -> int:
        """Return the epoch up to which the table has everything, 0 at first."""
        return table.transaction_version(self.options.app) or 0

    def _deliver(self, generation: int, upto: Epoch) -> None:
        """Commit what a generation prepared in epochs up to `upto` that the table does not have yet."""
        folder = _staged(self.options) / str(generation)
        epochs = [one for one in _numbers(folder) if one <= upto]
        if not epochs:
            return
        consumed = self.consumed_upto(DeltaTable(self.options.location))
        notes = chain.from_iterable(_notes(folder / str(epoch)) for epoch in epochs if epoch > consumed)
        for merged, some in groupby(notes, key=lambda note: note.path.is_relative_to(folder)):
            together = list(some)
            commit = self._merge if merged else self._append
            commit(DeltaTable(self.options.location), together[-1].epoch, together)
        for epoch in epochs:
            rmtree(folder / str(epoch))

    def _append(self, table: DeltaTable, epoch: int, notes: Sequence[_Note]) -> None:
        actions: list[AddAction | RemoveAction] = [note.action() for note in notes]
        table.create_write_transaction(actions, "append", table.schema(), commit_properties=self._commit(epoch))

    def _merge(self, table: DeltaTable, epoch: int, notes: Sequence[_Note]) -> None:
        """Merge the changes of some epochs, of each key the last one."""
        key = self.options.key
        same = " and ".join(f"{_of('t', one)} is not distinct from {_of('s', one)}" for one in key)
        merge = table.merge(
            _net(notes, key), same, source_alias="s", target_alias="t", commit_properties=self._commit(epoch)
        )
        gone = _of("s", _GONE)
        merge = merge.when_matched_delete(gone).when_matched_update_all(f"not {gone}", except_cols=[_GONE])
        merge.when_not_matched_insert_all(f"not {gone}", except_cols=[_GONE]).execute()

    def _commit(self, epoch: int) -> CommitProperties:
        """Return what a commit says besides. Delta refuses it if another one of the app came between."""
        return CommitProperties(
            custom_metadata={"tidefill.sink": self.relation.name, "tidefill.epoch": str(epoch)},
            app_transactions=[Transaction(self.options.app, epoch)],
        )

    def _discard(self, folder: Path) -> None:
        """Remove what a generation has prepared, and that is no part of the table."""
        table = set(DeltaTable(self.options.location).file_uris()) if folder.exists() else set[str]()
        for epoch in _numbers(folder):
            for note in _notes(folder / str(epoch)):
                if str(note.path) not in table:
                    note.path.unlink(missing_ok=True)
        rmtree(folder, ignore_errors=True)


def _options(options: Mapping[str, str], relation: Relation) -> DeltaOptions:
    return delta.read(options, relation.visible, [part.name for part in relation.key])


def _staged(options: DeltaOptions) -> Path:
    """Return the folder of a sink. Readers of Delta pass over names that begin with an underscore."""
    return Path(options.location) / _STAGING / options.app


def _numbers(folder: Path) -> list[int]:
    """Return the generations or epochs that have an entry in a folder, in order."""
    return sorted(int(one.name) for one in folder.glob("[0-9]*")) if folder.exists() else []


def _notes(folder: Path) -> list[_Note]:
    """Return the files that were prepared in the epoch of a folder."""
    read = (json.loads(one.read_text()) for one in sorted(folder.glob(f"*{_NOTE}")))
    return [_Note(int(folder.name), Path(one["path"]), one["size"], one["rows"]) for one in read]


def _of(alias: str, column: str) -> str:
    return f'{alias}."{column.replace(chr(34), chr(34) * 2)}"'


def _net(notes: Sequence[_Note], key: Sequence[str]) -> pa.Table:
    """Return the last change of each key, of files in the order of their epochs."""
    ordered: list[pa.Table] = []
    for _, some in groupby(notes, key=lambda note: note.epoch):
        changes = pa.concat_tables([pq.read_table(note.path, partitioning=None) for note in some])
        # In one epoch, what ended comes before what began.
        closes = _closes(changes)
        ordered += [changes.filter(closes), changes.filter(pc.invert(closes))]
    changes = pa.concat_tables(ordered)
    place = pa.array(range(changes.num_rows), pa.int64())
    groups = changes.select(list(key)).append_column(_PLACE, place).group_by(list(key)).aggregate([(_PLACE, "max")])
    last = changes.take(groups.column(f"{_PLACE}_max"))
    return last.drop_columns([OPERATION]).append_column(_GONE, _closes(last))


def _closes(changes: pa.Table) -> Any:
    return pc.equal(changes.column(OPERATION), pa.scalar(CLOSE, pa.int8()))
