"""The Delta table of a followed table: its rows come out of a log in the state store, which keeps them until then.

The log is committed, so whoever carries it writes the same rows. What a commit has carried is said by the versions of
two transactions of the app: up to which epoch the changes are in the table, and up to which the rows of history. Each
generation marks the table first. A commit of an older one that comes later is refused by Delta or by the mark, so what
older ones have prepared is never part of the table, and can be removed (I14).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from deltalake import DeltaTable, Transaction

from service.protocol.ids import Epoch, Generation
from service.protocol.relation import Relation
from workers.connectors.delta_files import delta_table, in_a_line
from workers.connectors.delta_foreign import accepted
from workers.connectors.delta_log import rows_of
from workers.connectors.delta_writer import DeltaWriter, notes_in, staged_in
from workers.connectors.deltalake import PAGES, DeltaSink
from workers.connectors.port import Consumed, MovedError

_GENERATION: Final = ".generation"
"""The suffix of the app in the name of the mark of a generation."""


@dataclass(frozen=True)
class CarriedTable:
    """The table in one generation."""

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

    def clear(self) -> None:
        """Remove what this generation and older ones have prepared."""
        files, staged = self.sink.files, staged_in(self.sink.options)
        for name in files.names(staged):
            if name.isdigit() and int(name) <= self.sink.generation:
                self.sink.discard(f"{staged}/{name}")

    @in_a_line()
    def commit(self, before: Consumed, upto: Epoch, prepared: int, *, truncated: bool) -> Consumed:
        """See `Carried`."""
        has = (before.changes, before.pages)
        self._unmoved(has)
        folder = f"{staged_in(self.sink.options)}/{self.sink.generation}"
        notes = notes_in(self.sink.files, folder, upto)
        if (found := sum(one.rows for one in notes)) != prepared:
            raise MovedError(f"of {prepared} rows that were prepared in {folder}/{upto}, {found} are there")
        rows, changes = [one for one in notes if not one.merged], [one for one in notes if one.merged]
        pages = Transaction(self._app(PAGES), upto)
        if truncated:
            table, both = self._unmoved(has), (Transaction(self.sink.options.app, upto), pages)
            self.sink.add(table, rows, *both, self._mark, accepted(table, self.sink.options), mode="overwrite")
        elif rows:
            table = self._unmoved(has)
            self.sink.add(table, rows, pages, self._mark, *self.sink.untouched(table))
            has = (before.changes, upto)
        if changes:
            self.sink.merge(self._unmoved(has), upto, changes, self._mark)
        self.sink.files.remove_folder(f"{folder}/{upto}")
        return self._consumed(delta_table(self.sink.options))

    def _unmoved(self, has: tuple[int, int]) -> DeltaTable:
        """Return the table if it has what it had. A commit by this handle is refused if it no longer has."""
        table = delta_table(self.sink.options)
        if table.transaction_version(self._mark.app_id) != self._mark.version:
            raise MovedError("a newer generation writes the Delta table")
        if self._epochs(table) != has:
            raise MovedError("the Delta table has got rows meanwhile")
        return table

    def _epochs(self, table: DeltaTable) -> tuple[Epoch, Epoch]:
        """Return the epochs up to which a table has the changes, and the rows of history."""
        changes, pages = (table.transaction_version(self._app(suffix)) or 0 for suffix in ("", PAGES))
        return Epoch(changes), Epoch(pages)

    def _consumed(self, table: DeltaTable) -> Consumed:
        return Consumed(table.version(), rows_of(table), *self._epochs(table))

    @property
    def _mark(self) -> Transaction:
        # The first generation is 0, which is also that of a table without a mark.
        return Transaction(self._app(_GENERATION), self.sink.generation + 1)

    def _app(self, suffix: str) -> str:
        return f"{self.sink.options.app}{suffix}"
