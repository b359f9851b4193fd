"""Compute a stage in the state store's own SQL: pages of history and changes, in one transaction."""

import math
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import psycopg
import pyarrow as pa

from service.protocol.ids import Epoch, RelationId
from service.protocol.quoting import quoted
from service.protocol.relation import Relation, partials_table, state_table
from workers.backfill.order import Position
from workers.backfill.positions import Block, PageSize
from workers.backfill.stages import Advances, BoundStage, Windows
from workers.state_store import stage_sql
from workers.state_store.bounded_session import BoundedSession, NoAnswerError
from workers.state_store.connections import GRACE_SECONDS
from workers.state_store.port import ArrowPage, Replayed, TooSlowError, Written
from workers.state_store.stage_delta import Delta, counted
from workers.state_store.statements import ENDED_AND_MADE, page_conditions, page_rows, stored_columns, write, written
from workers.state_store.wire import copy_csv

_CHANGES: Final = ("set local enable_seqscan = off",)
_PAGES: Final = ("set local enable_seqscan = on", "set local work_mem = '64MB'")
"""The planner may hash the inputs beside a page, which is faster than a lookup per row."""
LOOKED_UP_MAX: Final = 5_000
"""For a page of at most so many rows, each row is looked up instead, however large the other inputs are."""
_WHOLE: Final[Advances] = MappingProxyType({})
"""All inputs are read to their ends."""


@dataclass
class StageWriter:
    """One transaction of a stage: a `StageSession`.

    `part_of` finds a page's part of a block of a relation, and its upper key.
    """

    connection: BoundedSession
    bound: BoundStage
    epoch: Epoch
    part_of: Callable[[Relation, Block, Epoch, PageSize], tuple[Block, Position | None]]
    summing: bool = False
    limit_ms: int = 0
    """How long the changes of a stage, or a page of its history, may take; 0 is no limit."""
    timeout_ms: int = 0
    """How long they may take in this epoch."""

    def read_page(self, block: Block, size: PageSize, at: Mapping[RelationId, Epoch]) -> ArrowPage:
        """Compute the rows of a page of the driver's history. See `StageSession`."""
        with self._bounded():
            return self._read_page(block, size, at)

    def _read_page(self, block: Block, size: PageSize, at: Mapping[RelationId, Epoch]) -> ArrowPage:
        few = size.rows <= LOOKED_UP_MAX
        upstream = self.bound.upstream
        epoch = at[upstream.id]
        part, upto = self._page(upstream, block, size, epoch, _CHANGES if few else _PAGES)
        found = self._counted(upstream, part, upto, epoch)
        copied = 0
        if found and not self.bound.stage.is_whole:
            columns = ", ".join(quoted(column.name) for column in upstream.columns)
            within = " or ".join(f"({one})" for one in page_conditions(upstream, part, upto))
            # To read the page a second time costs less than to keep it for both.
            page = f"with page as ({page_rows(upstream, part, upto, columns, at=epoch)})"
            copied = self._run(f"{page} {self._insert(at, within, few=few)}")
        # Groups are counted when they are merged.
        return ArrowPage((), found, {span.vnode: upto for span in part}, 0 if self.summing else copied)

    def pass_page(self, relation: Relation, block: Block, size: PageSize, at: Epoch) -> ArrowPage:
        """Choose the next page of an input, and count its rows. See `StageSession`."""
        part, upto = self._page(relation, block, size, at, _CHANGES)
        return ArrowPage((), self._counted(relation, part, upto, at), {span.vnode: upto for span in part})

    def _page(
        self, relation: Relation, block: Block, size: PageSize, at: Epoch, settings: Collection[str]
    ) -> tuple[Block, Position | None]:
        self._set(settings)
        return self.part_of(relation, block, at, size)

    def _counted(self, relation: Relation, part: Block, upto: Position | None, at: Epoch) -> dict[int, int]:
        """Return the rows of a page by vnode."""
        rows = page_rows(relation, part, upto, "", at=at)
        return dict(self._all(f"select _vnode, count(*) from ({rows}) page group by _vnode"))

    def copy_changes(
        self,
        windows: Windows,
        changed: Collection[RelationId],
        advances: Advances = _WHOLE,
        *,
        anew: bool = False,
    ) -> Replayed:
        """Write what follows from the changes of the `changed` inputs. See `StageSession`."""
        self._set(_CHANGES)
        delta = Delta(self.bound, windows, changed, advances)
        if self.bound.stage.aggregate is None:
            anew = anew and self.bound.stage.is_whole
            given = stage_sql.every(self.bound) if anew else stage_sql.net(self.bound)
            parts = write(self.bound.target, given, self.epoch)
        else:
            sums = stage_sql.summed(self.bound, stage_sql.contributed(self.bound))
            parts = written(self.bound.target, stage_sql.found_groups(self.bound, sums), self.epoch)
        texts = stage_sql.changes(delta, anew=anew)
        with self._bounded():
            ((read, ended, made),) = self._all(f"with {texts}, {parts} select {counted(delta)}, {ENDED_AND_MADE}")
        return Replayed(read, Written(made, ended))

    @contextmanager
    def _bounded(self) -> Generator[None]:
        """Raise TooSlowError if a command of the block takes longer than the changes of a stage may take."""
        if not self.timeout_ms:
            yield
            return
        self._run(f"set local statement_timeout = {self.timeout_ms}")
        self.connection.patience = self.timeout_ms / 1000 + GRACE_SECONDS
        try:
            yield
        except (NoAnswerError, psycopg.errors.QueryCanceled) as error:
            if not isinstance(error, NoAnswerError) and "statement timeout" not in str(error):
                raise
            raise TooSlowError(self.limit_ms) from error
        self.connection.patience = math.inf

    def add_sums(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add sums that were computed elsewhere to those of pages. See `StageSession`."""
        self._begin_sums()
        with self.connection.cursor() as cursor:
            copy_csv(cursor, "sums", batches)

    def add_to_groups(self) -> Written:
        """Change the groups by the sums that were added. See `StageSession`."""
        self._begin_sums()
        self._set(_CHANGES)
        sums = stage_sql.summed(self.bound, f"select {self._sums} from sums")
        parts = written(self.bound.target, stage_sql.found_groups(self.bound, sums), self.epoch)
        with self._bounded():
            ((ended, made),) = self._all(f"with {parts} select {ENDED_AND_MADE}")
        return Written(made, ended)

    def end(self, at: Mapping[RelationId, Epoch], *, whole: bool) -> int:
        """Append the sums of all pages to the log, or compute the only part. See `StageSession`."""
        if whole and self.bound.stage.is_whole:
            return self._run(self._insert_rows(stage_sql.whole(self.bound, at)))
        aggregate = self.bound.stage.aggregate
        if aggregate is not None and (self.summing or aggregate.always):
            self._begin_sums()
            self._run(stage_sql.logged(self.bound, f"select {self._sums} from sums", self.epoch))
        return 0

    def unmerged(self) -> list[int]:
        """Return the vnodes whose partial groups are to be merged. See `StageSession`."""
        log = partials_table(self.bound.target.id)
        ((there,),) = self._all(f"select to_regclass('{log}') is not null")
        return [vnode for (vnode,) in self._all(stage_sql.unmerged(self.bound))] if there else []

    def merge(self, vnodes: Sequence[int]) -> int:
        """Insert the groups of some vnodes. See `StageSession`."""
        self._set(_PAGES)
        return self._run(stage_sql.merged(self.bound, vnodes, self.epoch))

    @property
    def _sums(self) -> str:
        """The columns of the sums of groups."""
        assert self.bound.stage.aggregate is not None
        return ", ".join(map(quoted, self.bound.stage.aggregate.state))

    def _insert(self, at: Mapping[RelationId, Epoch], within: str, *, few: bool) -> str:
        rows = stage_sql.page(self.bound, at, within, looked_up=few)
        if self.bound.stage.aggregate is None:
            return self._insert_rows(rows)
        self._begin_sums()
        return f"insert into sums ({self._sums}) {stage_sql.summed(self.bound, rows)}"

    def _insert_rows(self, rows: str) -> str:
        names, placed = ", ".join(map(quoted, stored_columns(self.bound.target))), stage_sql.placed(self.bound, rows)
        return f"insert into {state_table(self.bound.target.id)} ({names}) select *, {self.epoch} from ({placed}) new"

    def _begin_sums(self) -> None:
        """Create the table in which the sums of an epoch's pages wait, so that the log gets each group once."""
        if not self.summing:
            groups = state_table(self.bound.target.id)
            self._run(f"create temp table sums on commit drop as select {self._sums} from {groups} with no data")
            self.summing = True

    def _set(self, settings: Collection[str]) -> None:
        for setting in settings:
            self._run(setting)

    def _run(self, sql: str) -> int:
        """Run a command and return the number of rows that it wrote."""
        return self.connection.execute(sql).rowcount  # pyright: ignore[reportArgumentType, reportCallIssue] - printed from a plan

    def _all(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()  # pyright: ignore[reportArgumentType, reportCallIssue] - as above
