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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain, groupby
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from service.protocol import delta
from service.protocol.delta import STAGING, DeltaOptions, DeltaPlace
from service.protocol.ids import Epoch, Generation
from service.protocol.relation import Relation, RelationKind
from workers.connectors.delta_changes import MERGED_BYTES, net, portions
from workers.connectors.delta_files import Files, delta_table, in_a_line, storage_options
from workers.connectors.delta_foreign import SINK, checked
from workers.connectors.delta_shape import shape_here
from workers.connectors.delta_writer import DeltaWriter, Note, notes_in, staged_in
from workers.connectors.places import check_place
from workers.connectors.port import GONE, MovedError, RefusedTableError

_BEGAN: Final = "began"
_OWNER: Final = "tidefill.owner"
"""The transaction whose version says which app writes the changes of a table, alone."""
_NOBODY: Final = 0
PAGES: Final = ".pages"
"""The suffix of the app in the name of the transaction of rows that are appended to a table of changes."""
_FED: Final[dict[str, str | None]] = {"delta.enableChangeDataFeed": "true"}


def claim(options: Mapping[str, str], relation: Relation) -> None:
    """Create the table, or check that the one that is there can be used. Raises ValueError with the reason.

    A log of other programs may take all memory, or never end.
    """
    read = _options(options, relation)
    check_place(read)
    try:
        with in_a_line():
            _try_out(read)
            if Files.of(read).names("_delta_log"):
                shape_here(DeltaPlace(location=read.location, store=read.store))
            table = _present(read)
            if table is None:
                _create(read, relation)
            else:
                _check(table, read, relation)
            _own(read)
    except (OSError, DeltaError, RefusedTableError) as error:
        raise ValueError(f"{read.location} cannot be used by the worker: {error}") from error


def _try_out(options: DeltaOptions) -> None:
    """Write and remove a file: whoever may not learns it now."""
    if options.store is None:
        Path(options.location).mkdir(parents=True, exist_ok=True)
    files, probe = Files.of(options), f"{STAGING}/{options.app}.probe"
    files.put(probe, b"")
    files.remove(probe)


def _present(options: DeltaOptions) -> DeltaTable | None:
    # `DeltaTable.is_deltatable` would hold up all threads of the process while it waits for the storage.
    try:
        return delta_table(options)
    except TableNotFoundError:
        return None


def _create(options: DeltaOptions, relation: Relation) -> None:
    if any(name != STAGING for name in Files.of(options).names("")):
        raise ValueError(f"{options.location} is not empty, and no Delta table")
    DeltaTable.create(
        options.location,
        _schema(relation),
        partition_by=list(options.partitions),
        description=f"{relation.kind} {relation.name}",
        # Readers of a view follow its change feed, and need not read files that a merge has written again.
        configuration=None if relation.kind is RelationKind.SINK else _FED,
        storage_options=storage_options(options.store),
    )


def _check(table: DeltaTable, options: DeltaOptions, relation: Relation) -> None:
    wanted, at = _schema(relation).fields, f"the table at {options.location}"
    if {one.name: one.type for one in table.schema().fields} != {one.name: one.type for one in wanted}:
        columns = ", ".join(f"{one.name} {one.type}" for one in wanted)
        raise ValueError(f"{at} has other columns: the sink has {columns}")
    parts = table.metadata().partition_columns
    if parts != list(options.partitions):
        raise ValueError(f"{at} has other partitions: partition_by = '{', '.join(parts)}'")
    if options.upsert and table.file_uris():
        raise ValueError(f"{at} has rows already: an upsert sink begins with an empty one")


def _own(options: DeltaOptions) -> None:
    """Become the only writer of a table of changes. Of two that try it at once, one gets a conflict."""
    table = delta_table(options)
    owner, mine = table.transaction_version(_OWNER), _number(options.app)
    if owner not in (None, _NOBODY, mine):
        raise ValueError(f"the table at {options.location} is that of another view or sink, which is its only writer")
    if options.upsert and owner != mine:
        _hand_over(table, mine)


def _hand_over(table: DeltaTable, owner: int) -> None:
    commit = CommitProperties(app_transactions=[Transaction(_OWNER, owner)])
    table.create_write_transaction([], "append", table.schema(), commit_properties=commit)


def _number(app: str) -> int:
    return int.from_bytes(sha256(app.encode()).digest()[:7], "big") + 1


def _schema(relation: Relation) -> Schema:
    return Schema.from_json(delta.delta_schema(relation.delivered))


@dataclass(frozen=True)
class DeltaSink:
    """A sink in one generation."""

    options: DeltaOptions
    relation: Relation
    generation: Generation

    @cached_property
    def files(self) -> Files:
        """The files of the table."""
        return Files.of(self.options)

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

    @in_a_line()
    def begin(self, committed: Epoch) -> int | None:
        """See `Sink`."""
        files, staged = self.files, staged_in(self.options)
        delta_table(self.options)  # raises an error if it is away
        began = _numbers(files, f"{staged}/{_BEGAN}")
        newest = max(began, default=0)
        older = [one for one in _numbers(files, staged) if one < self.generation]
        for generation in older:
            if generation >= newest:
                self._deliver(generation, committed)
        files.put(f"{staged}/{_BEGAN}/{self.generation}", b"")
        for generation in older:
            self.discard(f"{staged}/{generation}")
        # Only the newest mark counts, and each recovery makes one.
        for generation in began:
            if generation < self.generation:
                files.remove(f"{staged}/{_BEGAN}/{generation}")
        return delta_table(self.options).version()

    @in_a_line()
    def commit(self, upto: Epoch, *, again: bool = False) -> int | None:
        """See `Sink`. When it is called `again`, because nobody knows how far it came, it returns a version."""
        delivered = self._deliver(self.generation, upto)
        return delta_table(self.options).version() if delivered or again else None

    def clean_up(self, *, purge: bool = False) -> None:
        """See `Sink`."""
        staged = staged_in(self.options)
        for generation in _numbers(self.files, staged):
            self.discard(f"{staged}/{generation}")
        self.files.remove_folder(staged)
        table = delta_table(self.options)
        mine = table.transaction_version(_OWNER) == _number(self.options.app)
        if mine and purge:
            self.files.clear()
        elif mine:
            _hand_over(table, _NOBODY)
        elif purge:
            raise ValueError(f"{self.options.location} may have rows of other writers")

    @in_a_line()
    def pending(self, upto: Epoch) -> tuple[int, pa.Table | None]:
        """See `Sink`."""
        staged, table = staged_in(self.options), delta_table(self.options)
        has = changes, _ = self.marks(table)
        folder = f"{staged}/{max(_numbers(self.files, f'{staged}/{_BEGAN}'), default=0)}"
        epochs = [one for one in _numbers(self.files, folder) if changes < one <= upto]
        notes = [note for epoch in epochs for note in notes_in(self.files, folder, epoch) if note.merged]
        if (waiting := sum(note.memory for note in notes)) > MERGED_BYTES:
            # The changes of an hour took 18 GB.
            raise RefusedTableError(
                f"{waiting >> 20} MB of changes wait for the next commit (commit_interval), and {MERGED_BYTES >> 20} MB"
                " may be looked at: verify the view after it"
            )
        try:
            last = net(self.files, notes, self.options.key) if notes else None
        except FileNotFoundError:
            last = None
        if max(has) > upto or self.marks(delta_table(self.options)) != has:
            raise MovedError("the Delta table has just got newer changes: try again")
        return table.version(), last

    def marks(self, table: DeltaTable) -> tuple[int, int]:
        """Return the epochs up to which the table has all changes, and all rows that are appended; 0 at first.

        An epoch may have both, which are two commits.
        """
        changes = table.transaction_version(self.options.app) or 0
        pages = table.transaction_version(f"{self.options.app}{PAGES}")
        return changes, changes if pages is None else pages

    def _deliver(self, generation: int, upto: Epoch) -> bool:
        """Commit what a generation prepared in epochs up to `upto` that the table does not have yet. Return whether
        there was any.
        """
        folder = f"{staged_in(self.options)}/{generation}"
        epochs = [one for one in _numbers(self.files, folder) if one <= upto]
        if not epochs:
            return False
        changes, pages = self.marks(delta_table(self.options))
        every = chain.from_iterable(notes_in(self.files, folder, epoch) for epoch in epochs)
        left = [note for note in every if note.epoch > (changes if note.merged else pages)]
        notes = sorted(left, key=lambda note: (note.epoch, note.merged))
        for merged, some in groupby(notes, key=lambda note: note.merged):
            commit = self.merge if merged else self._append
            for together in portions(some) if merged else [list(some)]:
                commit(delta_table(self.options), together[-1].epoch, together)
        for epoch in epochs:
            self.files.remove_folder(f"{folder}/{epoch}")
        return True

    def _append(self, table: DeltaTable, epoch: int, notes: Sequence[Note]) -> None:
        app = f"{self.options.app}{PAGES}" if self.options.upsert else self.options.app
        self.add(table, notes, Transaction(app, epoch), *self.untouched(table))

    def add(
        self,
        table: DeltaTable,
        notes: Sequence[Note],
        *said: Transaction,
        mode: Literal["append", "overwrite"] = "append",
    ) -> None:
        """Make files part of the table, or all of it, by one commit."""
        actions: list[AddAction | RemoveAction] = [self._added(note) for note in notes]
        table.create_write_transaction(actions, mode, table.schema(), commit_properties=self.said(*said))

    def _added(self, note: Note) -> AddAction:
        """Return the action that makes a file part of the table. Raises FileNotFoundError if somebody removed it."""
        modified, stats = (self.files.info(note.path).mtime_ns or 0) // 1_000_000, json.dumps({"numRecords": note.rows})
        values: dict[str, str | None] = dict(zip(self.options.partitions, note.values, strict=True))
        return AddAction(note.path, note.size, values, modified, data_change=True, stats=stats)

    def merge(self, table: DeltaTable, epoch: int, notes: Sequence[Note], *also: Transaction) -> None:
        """Merge the changes of some epochs, of each key the last one. A merge unpacks the rows of all files that it
        touches.

        Raises RefusedTableError if another program has changed rows.
        """
        said = [Transaction(self.options.app, epoch), *also, *self.untouched(table)]
        key = self.options.key
        # Without parentheses, delta-rs takes the next condition for a part of the second value.
        same = " and ".join(f"({_of('t', one)} is not distinct from {_of('s', one)})" for one in key)
        merge = table.merge(
            net(self.files, notes, key),
            same,
            source_alias="s",
            target_alias="t",
            commit_properties=self.said(*said),
        )
        gone = _of("s", GONE)
        merge = merge.when_matched_delete(gone).when_matched_update_all(f"not {gone}", except_cols=[GONE])
        merge.when_not_matched_insert_all(f"not {gone}", except_cols=[GONE]).execute()

    def untouched(self, table: DeltaTable) -> Sequence[Transaction]:
        """Return what a commit says of the versions before it. Raises RefusedTableError if another program has changed
        rows of a table of changes. Rows may be appended by anybody to others.
        """
        return [checked(table, self.options)] if self.options.upsert else []

    def said(self, *consumed: Transaction) -> CommitProperties:
        """Return what a commit says besides. Delta refuses it if another one of these apps came between."""
        return CommitProperties(
            custom_metadata={SINK: self.relation.name, "tidefill.epoch": str(consumed[0].version)},
            app_transactions=list(consumed),
        )

    def discard(self, folder: str) -> None:
        """Remove what a generation has prepared, and that is no part of the table."""
        table = set(delta_table(self.options).file_uris())
        for epoch in _numbers(self.files, folder):
            for note in notes_in(self.files, folder, epoch):
                if f"{self.options.location}/{note.path}" not in table:
                    self.files.remove(note.path)
        self.files.remove_folder(folder)


def _options(options: Mapping[str, str], relation: Relation) -> DeltaOptions:
    return delta.read(options, relation.delivered, [part.name for part in relation.key])


def _numbers(files: Files, folder: str) -> list[int]:
    """Return the generations or epochs that have an entry in a folder, in order."""
    return sorted(int(name) for name in files.names(folder) if name.isdigit())


def _of(alias: str, column: str) -> str:
    return f'{alias}."{column.replace(chr(34), chr(34) * 2)}"'
