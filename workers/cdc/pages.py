"""Copy the history of one external table. A Spark task per actor copies pages from the external database to the store.

A page goes from COPY to COPY, byte for byte. Only the vnode of a row is read on the way. All pages of an actor and
epoch are read in one snapshot and written by one COPY. The store writes a page while the external database finds and
reads the next one.

The pages count only if the snapshot shows every transaction that was decoded in earlier epochs. A hidden change would
be lost, because it is not decoded again.

The barrier waits for the pages, so they have a common deadline, which also interrupts a page. After the deadline none
of them counts, and the next page is half as large.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import psycopg
from pydantic import BaseModel

from service.protocol.kept import nulled_query
from service.protocol.plan import VnodePosition
from service.protocol.quoting import quoted
from service.protocol.relation import log_table, state_table
from workers.backfill.actors import FragmentTask
from workers.backfill.order import Position
from workers.backfill.pace import page_rows_after
from workers.backfill.positions import ONE_VNODE, Block, PageSize, Positions, Span, pages
from workers.cdc.apply import COPY_END, COPY_HEADER, Written, is_refusal, merge_command, reason_of, way_out
from workers.cdc.connecting import AwayError, ChangedError, HeldUpError, Patient, TooMuchError, cached, understanding
from workers.cdc.external import ask, reading
from workers.cdc.keys import ExternalTable, bound_query, keyed, page_query
from workers.cdc.log import ROW_BYTES_MAX, ROW_TOO_LARGE
from workers.cdc.snapshots import Snapshot
from workers.cdc.streaming import stream
from workers.state_store.connections import BY_KEY, WRITING
from workers.state_store.port import SqlStore
from workers.state_store.statements import stored_columns

_WRITE_BYTES: Final = 1 << 18
"""The size of one write: some thousand rows. It has many rows of each vnode, but lets both servers work in parallel."""
PAGES_SECONDS: Final = 3.0
"""How long an actor's pages of one epoch may together wait for the external database beyond the time slice."""
TOO_SLOW: Final = "the external database takes long to send its rows; fewer of them are asked for"
KEY_SECONDS: Final = 5.0
"""Time limit for finding the key of a row that the table refuses. Without the key the error is less specific."""
_VNODE_AT: Final = 6
"""Where the first column's value begins in a row: after the number of columns and its length."""


class PagesTask(FragmentTask):
    """The input of one table's pages in one epoch. `undecided` are the transactions that a page must show."""

    undecided: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copied:
    """One table in one generation. The tasks' closures contain it."""

    store: SqlStore
    table: ExternalTable
    actors: int
    conninfo: str = field(repr=False)


class PagesOutcome(BaseModel):
    """The result of one actor. `snapshot` is set if it read pages. Otherwise one of the reasons is set.

    The reasons are `waiting`, `broken`, `altered` and `away`.
    """

    actor: int
    positions: tuple[VnodePosition, ...] = ()
    snapshot_rows: int = 0
    made: int | None = None
    """How many versions a reload made. None: one for each row."""
    ended: int = 0
    nulled: int = 0
    page_rows: int
    snapshot: str | None = None
    reading_seconds: float = 0.0
    overrun_seconds: float = 0.0
    """How long it waited for the external database beyond its time slice."""
    used_slice: bool = False
    waiting: str | None = None
    """Why this table may not be read now."""
    behind: bool = False
    """Whether it waits for transactions that are older than the table's place in the publication."""
    broken: str | None = None
    altered: str | None = None
    """An error that shows that the external table was altered."""
    away: str | None = None


@dataclass(frozen=True, slots=True)
class _Page:
    rows: dict[int, int]
    reached: dict[int, Position | None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A page: about `rows` keys of a split after the span's position, up to and including `upto` (None: the rest)."""

    span: Span
    upto: Position | None
    rows: int


class _TooLargeError(Exception):
    """A row is larger than `ROW_BYTES_MAX`, or its answer larger than the session takes."""


class _RefusedError(Exception):
    """A page that was read has a row that the table refuses."""

    def __init__(self, reason: str, pages: Sequence[_Asked], remedy: str = "") -> None:
        super().__init__(reason)
        self.pages, self.remedy = pages, remedy


def copy_pages(copied: Copied, task: PagesTask, index: int) -> PagesOutcome:
    """Copy pages until history ends, the permits are used up, or the time slice is over.

    Raises what the state store raises.
    """
    outcome = partial(PagesOutcome, actor=index, page_rows=task.page_rows)
    copying = _Copying(copied, task, index)
    try:
        try:
            with understanding():
                return copying.run()
        except _RefusedError as error:
            key = copying.key_of_refused(error)
            place = "" if key is None else f" at {keyed(copied.table, key)}"
            return outcome(broken=f"{error}{place}{error.remedy}")
    except HeldUpError as error:
        # A smaller page may be fast enough.
        rows = max(task.page_rows // 2, 1) if error.slow else task.page_rows
        return PagesOutcome(actor=index, page_rows=rows, waiting=str(error), overrun_seconds=copying.overrun)
    except AwayError as error:
        return outcome(away=str(error))
    except ChangedError as error:
        return outcome(altered=str(error))


@dataclass
class _Copying:
    copied: Copied
    task: PagesTask
    index: int
    page_rows: int = 0
    asked: list[_Asked] = field(default_factory=list[_Asked])
    overrun: float = 0.0
    """How many seconds it waited for the external database beyond the time slice."""
    written: Written | None = None
    """What a reload has written."""
    searching: float = field(default_factory=lambda: KEY_SECONDS)
    """How many seconds are left to find the key of a row."""

    def run(self) -> PagesOutcome:
        began = _monotonic()
        actor, copied = self.task.actors[self.index], self.copied
        self.page_rows = self.task.page_rows
        known: dict[int, VnodePosition] = {position.vnode: position for position in actor.positions}
        positions = Positions(actor.runs, known, block_vnodes=ONE_VNODE)
        more_time = partial(_more_time, began + self.task.slice_seconds)
        with (
            cached(copied.conninfo, copied.table.scan.source.slot) as external,
            copied.store.transaction(WRITING) as store,
            self._in_time(external),
            reading(external, copied.table) as snapshot,
        ):
            reason = self._refused(snapshot)
            if reason is not None:
                return reason
            rows = self._read(external, store, positions, more_time)
            ((nulled,),) = ask(external, nulled_query(copied.table.relation.id))
        return PagesOutcome(
            actor=self.index,
            positions=positions.take_changed(),
            snapshot_rows=rows,
            made=None if self.written is None else self.written.made,
            ended=0 if self.written is None else self.written.ended,
            nulled=nulled,
            page_rows=self.page_rows,
            snapshot=snapshot.text(),
            reading_seconds=_monotonic() - began,
            overrun_seconds=self.overrun,
            used_slice=not more_time(),
        )

    @contextmanager
    def _in_time(self, external: Patient) -> Generator[None]:
        """Bound the wait for pages. Raises HeldUpError after the deadline: the log and smaller pages may still come."""
        external.left, before = self.task.slice_seconds + PAGES_SECONDS, external.waited
        try:
            yield
        except AwayError as error:
            if external.left > 0.0:
                raise
            raise HeldUpError(TOO_SLOW, slow=True) from error
        finally:
            self.overrun = max(external.waited - before - self.task.slice_seconds, 0.0)

    def _refused(self, snapshot: Snapshot) -> PagesOutcome | None:
        none = partial(PagesOutcome, actor=self.index, page_rows=self.task.page_rows)
        if hidden := snapshot.hidden(self.task.undecided):
            return none(waiting=f"transaction {hidden[0]} is committed but not yet visible")
        if snapshot.xmin < self.copied.table.scan.readable_after:
            return none(waiting="a transaction is older than the table's place in the publication", behind=True)
        return None

    def _next_rows(self) -> int:
        return self.page_rows

    def _read(
        self,
        external: Patient,
        store: psycopg.Connection,
        positions: Positions,
        more_time: Callable[[], bool],
    ) -> int:
        """Copy page after page, and return the number of rows."""
        permits, rows = self.task.actors[self.index].permits, 0
        try:
            with self._writing(store) as write:
                read = partial(self._page, external, write)
                for page in pages(positions, read, page_rows=self._next_rows, permits=permits, more_time=more_time):
                    rows += sum(page.rows.values())
        except _TooLargeError as error:
            raise _RefusedError(str(error), self.asked[-1:]) from error
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            # The store may report a refused row only at the end of the COPY, so any page may have it.
            raise _RefusedError(reason_of(error), self.asked, way_out(error, self.copied.table.relation)) from error
        return rows

    def _page(self, external: Patient, write: Callable[[bytes], None], block: Block, size: PageSize) -> _Page:
        began = _monotonic()
        (span,) = block
        page = _Asked(span, self._bound(external, span, size.rows), size.rows)
        self.asked.append(page)
        rows, size_bytes = self._copy(external, write, page)
        seconds = _monotonic() - began
        self.page_rows = page_rows_after(self.page_rows, rows=rows, size_bytes=size_bytes, seconds=seconds)
        return _Page({span.vnode: rows} if rows else {}, {span.vnode: page.upto})

    def _bound(self, external: Patient, span: Span, rows: int) -> Position | None:
        table = self.copied.table
        found = ask(external, bound_query(table, table.scan.splits[span.vnode], span.after, rows))
        return tuple(map(str, found[0])) if found else None

    def _copy(self, external: Patient, write: Callable[[bytes], None], page: _Asked) -> tuple[int, int]:
        """Copy the rows of a page, and return their number and their size in bytes."""
        table = self.copied.table
        split = table.scan.splits[page.span.vnode]
        query = page_query(table, split, page.span.after, page.upto, epoch=self.task.curr)
        count = size = 0
        # Close the stream at once after an error, because the session accepts no other query while it streams.
        with _not_too_large(), closing(stream(external, query)) as found:
            for rows in by_vnode(found):
                together = b"".join(rows)
                count += len(rows)
                size += len(together)
                write(together)
        return count, size

    @contextmanager
    def _writing(self, store: psycopg.Connection) -> Generator[Callable[[bytes], None]]:
        """Yield the function that writes rows to the table. A refused row raises when the context ends, or earlier."""
        relation = self.copied.table.relation
        names = ", ".join(quoted(name) for name in stored_columns(relation))
        reload = self.copied.table.over_stored
        stored = state_table(relation.id) if relation.lake is None else log_table(relation.id)
        target = f"pg_temp.reload_{relation.id}" if reload else stored
        if reload:
            like = f"select {names} from {state_table(relation.id)} with no data"
            store.execute(_sql(f"create temp table {target[8:]} on commit drop as {like}"))
        with store.cursor() as cursor, cursor.copy(_sql(f"copy {target} ({names}) from stdin (format binary)")) as copy:
            copy.write(COPY_HEADER)
            yield copy.write
            copy.write(COPY_END)
        if reload:
            for statement in (f"analyze {target}", *BY_KEY):
                store.execute(_sql(statement))
            command = merge_command(relation, target, self.task.curr, stamp=self.copied.table.scan.timestamp)
            ended, made = store.execute(_sql(command)).fetchall()[0]
            self.written = Written(made=made, ended=ended)

    def key_of_refused(self, refused: _RefusedError) -> Position | None:
        """Return the key of the first refused row. None where the row has gone, or the time limit is exceeded."""
        try:
            return self._find_refused(refused)
        except AwayError:
            if self.searching > 0.0:
                raise
            return None

    def _find_refused(self, refused: _RefusedError) -> Position | None:
        page = next((page for page in refused.pages if self._fails(page)), None)
        if page is None:
            return None
        while page.rows > 1:
            half = page.rows // 2
            first = _Asked(page.span, self._looked_up(page.span, half), half)
            if first.upto is None or self._fails(first):
                page = first
            else:
                page = _Asked(Span(page.span.vnode, first.upto), page.upto, page.rows - half)
        return self._looked_up(page.span, 1) if self._fails(page) else None

    def _looked_up(self, span: Span, rows: int) -> Position | None:
        with self._searching() as external:
            return self._bound(external, span, rows)

    @contextmanager
    def _searching(self) -> Generator[Patient]:
        with cached(self.copied.conninfo, self.copied.table.scan.source.slot) as external:
            external.left = self.searching
            try:
                yield external
            finally:
                self.searching = external.left

    def _fails(self, page: _Asked) -> bool:
        try:
            with (
                self._searching() as external,
                self.copied.store.transaction(WRITING, kept=False) as connection,
                reading(external, self.copied.table),
                self._writing(connection) as write,
            ):
                self._copy(external, write, page)
        except _TooLargeError:
            return True
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
            return True
        return False


@contextmanager
def _not_too_large() -> Generator[None]:
    try:
        yield
    except TooMuchError as error:
        raise _TooLargeError(ROW_TOO_LARGE) from error


def by_vnode(arriving: Iterable[Sequence[bytes]]) -> Iterator[list[bytes]]:
    """Gather rows into writes of `_WRITE_BYTES`, each in the order of vnodes.

    The index inserts adjacent keys faster, and a scan of a vnode finds its rows close together.
    """
    gathered: list[bytes] = []
    lengths: list[int] = []
    size = 0
    for rows in arriving:
        arrived = list(map(len, rows))
        if max(arrived) > ROW_BYTES_MAX:
            raise _TooLargeError(ROW_TOO_LARGE)
        gathered += rows
        lengths += arrived
        size += sum(arrived)
        if size > _WRITE_BYTES:
            yield _in_order(gathered, lengths)
            gathered, lengths, size = [], [], 0
    if gathered:
        yield _in_order(gathered, lengths)


def _in_order(rows: Sequence[bytes], lengths: Sequence[int]) -> list[bytes]:
    """Sort rows by vnode. All vnodes are extracted at once, because doing so row by row would dominate the cost."""
    every = np.frombuffer(b"".join(rows), dtype=np.uint8)
    sizes = np.array(lengths, dtype=np.int64)
    at = np.cumsum(sizes) - sizes + _VNODE_AT
    vnodes = every[at].astype(np.uint16) << 8 | every[at + 1]
    return [rows[place] for place in np.argsort(vnodes, kind="stable").tolist()]


def _more_time(deadline: float) -> bool:
    return _monotonic() < deadline


def _monotonic() -> float:
    return time.monotonic()  # noqa: TID251 - the task owns the clock of its slice


def _sql(text: str) -> Any:
    """Return `text` as a type that psycopg accepts: it wants literal strings, but these contain quoted identifiers."""
    return text
