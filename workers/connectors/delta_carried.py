"""The Delta table of a followed table: its rows come out of a log in the state store, which keeps them until then.

The log is committed, so whoever carries it writes the same rows. What a commit has carried is said by the versions of
two transactions of the app: up to which epoch the changes are in the table, and up to which the rows of history. Each
generation marks the table first. A commit of an older one that comes later is refused by Delta or by the mark, so what
older ones have prepared is never part of the table, and can be removed (I14).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from service.protocol.ids import Epoch, Generation
from service.protocol.relation import Relation
from workers.connectors.delta_files import delta_table, in_a_line
from workers.connectors.delta_foreign import accepted
from workers.connectors.delta_log import rows_of
from workers.connectors.delta_writer import DeltaWriter, Note, notes_in, staged_in
from workers.connectors.deltalake import DeltaSink
from workers.connectors.port import Consumed, MovedError

_PAGES: Final = ".pages"
_GENERATION: Final = ".generation"
"""What follows the app's name in the name of a transaction."""


@dataclass(frozen=True)
class CarriedTable:
    """The table in one generation: a `Carried`."""

    sink: DeltaSink

    @classmethod
    def of(cls, options: Mapping[str, str], relation: Relation, generation: Generation) -> "CarriedTable":
        """Return the table. The service has checked the options."""
        return cls(DeltaSink.of(options, relation, generation))

    @property
    def commit_seconds(self) -> float:
        """See `Carried`."""
        return self.sink.commit_seconds

    @property
    def writer(self) -> DeltaWriter:
        """See `Carried`."""
        return self.sink.writer

    @in_a_line()
    def begin(self) -> Consumed:
        """See `Carried`."""
        table = delta_table(self.sink.options)
        marked = table.transaction_version(self._mark.app_id) or 0
        if marked > self._mark.version:
            raise MovedError("a newer generation writes the Delta table")
        if marked < self._mark.version:
            # From here on, no commit of an older generation comes into being.
            table.create_write_transaction([], "append", table.schema(), commit_properties=self.sink.said(self._mark))
        self.clear()
        return self._consumed(delta_table(self.sink.options))

    def keep_up(self, kept: Sequence[int]) -> None:
        """See `Carried`."""
        self.sink.keep_up(kept)

    def clear(self) -> None:
        """See `Carried`."""
        files, staged = self.sink.files, staged_in(self.sink.options)
        for name in files.names(staged):
            if name.isdigit() and int(name) <= self.sink.generation:
                self.sink.discard(f"{staged}/{name}")

    @in_a_line()
    def commit(self, before: Consumed, upto: Epoch, prepared: int, *, truncated: bool) -> Consumed:
        """See `Carried`."""
        self._unmoved(before)
        folder = f"{staged_in(self.sink.options)}/{self.sink.generation}"
        notes = notes_in(self.sink.files, folder, upto)
        if (found := sum(one.rows for one in notes)) != prepared:
            raise MovedError(f"of {prepared} rows that were prepared in {folder}/{upto}, {found} are there")
        rows, changes = [one for one in notes if not one.merged], [one for one in notes if one.merged]
        both = (Transaction(self.sink.options.app, upto), Transaction(self._app(_PAGES), upto))
        if truncated:
            table = self._unmoved(before)
            self._add(table, "overwrite", rows, *both, accepted(table, self.sink.options))
        elif rows:
            table = self._unmoved(before)
            self._add(table, "append", rows, both[1], *self.sink.untouched(table))
            before = self._consumed(delta_table(self.sink.options))
        if changes:
            self.sink.merge(self._unmoved(before), upto, changes, self._mark)
        self.sink.files.remove_folder(f"{folder}/{upto}")
        return self._consumed(delta_table(self.sink.options))

    def _add(self, table: DeltaTable, mode: str, notes: Sequence[Note], *consumed: Transaction) -> None:
        actions: list[AddAction | RemoveAction] = [self.sink.added(note) for note in notes]
        said = self.sink.said(*consumed, self._mark)
        table.create_write_transaction(
            actions, "overwrite" if mode == "overwrite" else "append", table.schema(), commit_properties=said
        )

    def _unmoved(self, before: Consumed) -> DeltaTable:
        """Return the table if it has what it had. A commit by this handle is refused if it no longer has."""
        table = delta_table(self.sink.options)
        now = self._consumed(table)
        if table.transaction_version(self._mark.app_id) != self._mark.version:
            raise MovedError("a newer generation writes the Delta table")
        if (now.changes, now.pages) != (before.changes, before.pages):
            raise MovedError("the Delta table has got rows meanwhile")
        return table

    def _consumed(self, table: DeltaTable) -> Consumed:
        changes = table.transaction_version(self.sink.options.app) or 0
        pages = table.transaction_version(self._app(_PAGES)) or 0
        return Consumed(table.version(), rows_of(table), Epoch(changes), Epoch(pages))

    @property
    def _mark(self) -> Transaction:
        # The first generation is 0, which is also that of a table without a mark.
        return Transaction(self._app(_GENERATION), self.sink.generation + 1)

    def _app(self, suffix: str) -> str:
        return f"{self.sink.options.app}{suffix}"
