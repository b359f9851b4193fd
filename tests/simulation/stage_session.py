"""The worker's transaction of a stage, over tables in memory: pages of history, and what follows from changes."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from service.protocol.ids import ActorId, Epoch, RelationId
from service.protocol.relation import Relation
from service.protocol.vnodes import vnodes_of
from tests.simulation import stages
from tests.simulation.kernel import Kernel
from tests.simulation.stages import Meaning, States
from tests.support.fake_state_store import PartialGroup, StoredTable, Writing, key_at, ranked
from tests.support.model import Key, ModelPage, Row, Version
from workers.backfill.pace import Pace
from workers.backfill.positions import Block, PageSize
from workers.backfill.stages import Advances, Reached, Windows
from workers.engines.history import ActorHistory
from workers.runners.history import HistoryScan
from workers.state_store.port import ArrowPage, Replayed, Written

T = TypeVar("T")
_WHOLE: Final[Advances] = MappingProxyType({})


class Tables(Protocol):
    """The part of the task's store that a session needs."""

    page_rows: int
    scan: HistoryScan | None
    """The scan whose page is read."""

    def table(self, relation: RelationId) -> StoredTable: ...
    def pass_by(self, point: str) -> None: ...
    def page_read(self, curr: Epoch, actor: ActorId, rows: int) -> None: ...


@dataclass
class Work:
    """The clock of slices: a page takes a second of it."""

    seconds: float = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def history(self, *args: Any, began: float | None = None) -> ActorHistory:
        """Return the history of an actor whose slice begins now, if it did not begin with that of others."""
        return ActorHistory(*args, began=self.seconds if began is None else began)


@dataclass(frozen=True, slots=True)
class Slice(Pace):
    """A slice of so many pages."""

    pages: int = 1

    def slice_seconds(self, available_seconds: float) -> float:
        del available_seconds
        return float(self.pages)

    def measured(self, *, job_seconds: float, slice_seconds: float) -> "Slice":
        del job_seconds, slice_seconds
        return self


@dataclass
class InTurn:
    """In the place of `Copiers`: what runs at the same time runs in some order."""

    kernel: Kernel
    name: str
    at_once: int
    over: bool = False

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        order = list(range(len(calls)))
        self.kernel.random.shuffle(order)
        found = {index: calls[index]() for index in order}
        return [found[index] for index in range(len(calls))]

    def read(self, history: ActorHistory) -> None:
        for _ in history.pages():
            self.assure_wanted()

    def assure_wanted(self) -> None:
        if self.over:
            raise InterruptedError

    def give_up(self) -> None:
        self.over = True


@dataclass
class Session:
    """A `StageSession`."""

    tables: Tables
    work: Work
    meaning: Meaning
    epoch: Epoch
    writing: Writing

    @property
    def target(self) -> StoredTable:
        return self.tables.table(self.meaning.bound.target.id)

    def read_page(self, block: Block, size: PageSize, at: Mapping[RelationId, Epoch]) -> ArrowPage:
        self.tables.pass_by("before a page of a stage")
        self.work.seconds += 1
        upstream = self.meaning.bound.upstream.id
        size = replace(size, rows=min(size.rows, self.tables.page_rows))
        page = self.tables.table(upstream).page(at[upstream], block, size)
        self._tell(block, page)
        copied = self._write_page(page, at)
        self.tables.pass_by("after a page of a stage")
        return ArrowPage((), page.rows, page.reached, copied)

    def pass_page(self, relation: Relation, block: Block, size: PageSize, at: Epoch) -> ArrowPage:
        self.tables.pass_by("before a page of an operator")
        size = replace(size, rows=min(size.rows, self.tables.page_rows))
        page = self.tables.table(relation.id).page(at, block, size)
        self._tell(block, page)
        self.tables.pass_by("after a page of an operator")
        return ArrowPage((), page.rows, page.reached)

    def copy_changes(
        self, windows: Windows, changed: Collection[RelationId], advances: Advances = _WHOLE, *, anew: bool = False
    ) -> Replayed:
        self.tables.pass_by("before the changes of a stage")
        # An input that is said not to have changed is seen as it is.
        before = {one: window.after if one in changed else window.upto for one, window in windows.items()}
        after = {one: window.upto for one, window in windows.items()}
        old, new = self._states(before), self._states(after)
        for alias, one in advances.items():
            relation = self.meaning.bound.of[alias].id
            old[alias] = self._prefix(relation, before[relation], one.before)
            new[alias] = self._prefix(relation, after[relation], one.after)
        read = sum(len(self.tables.table(one).changes(windows[one].after, windows[one].upto)) for one in changed)
        if self.meaning.stage.aggregate is not None:
            driver = self.meaning.stage.driver
            less, more = (self.meaning.sums(states, stages.seen(states, driver)) for states in (old, new))
            return Replayed(read, self._add(_without(more, less)))
        gone, come = self._rows(old, before), self._rows(new, after)
        target, alive = self.target, self.target.alive()
        if anew:
            # Whatever the target holds of them already, each row is written.
            assert self.meaning.stage.is_whole
            gone = dict.fromkeys(alive, ((), -1))
        closed = 0
        for key, (row, vnode) in gone.items():
            if come.get(key) != (row, vnode):
                self.writing.closed.append((target, key, self.epoch))
                closed += key in alive and alive[key].start < self.epoch
        made = [(key, row, vnode) for key, (row, vnode) in come.items() if gone.get(key) != (row, vnode)]
        self._insert(made)
        return Replayed(read, Written(len(made), closed))

    def unmerged(self) -> list[int]:
        logged = {one.vnode for one in self.target.partials or ()}
        return sorted(logged - {one.vnode for one in self.target.versions})

    def merge(self, vnodes: Sequence[int]) -> int:
        self.tables.pass_by("before a merge of groups")
        self.work.seconds += 1
        groups = summed(one for one in self.target.partials or () if one.vnode in vnodes)
        self._insert([(key, self.meaning.group(sums), 0) for key, sums in groups.items()])
        self.tables.pass_by("after a merge of groups")
        return len(groups)

    def end(self, at: Mapping[RelationId, Epoch], *, whole: bool) -> int:
        self.tables.pass_by("before the end of a stage")
        if not (whole and self.meaning.stage.is_whole):
            return 0
        made = [(key, row, 0) for key, row in stages.whole(self.meaning, self._states(at)).items()]
        self._insert(made)
        return len(made)

    def _tell(self, block: Block, page: ModelPage) -> None:
        assert self.tables.scan is not None
        actors = self.tables.scan.state.actors
        (actor,) = [one.id for one in actors if block[0].vnode in vnodes_of(one.positions.runs)]
        self.tables.page_read(self.epoch, actor, len(page.versions))

    def _prefix(self, relation: RelationId, at: Epoch, reached: Reached) -> dict[Key, Row]:
        """Return the rows of an input that were read."""
        table = self.tables.table(relation)
        alive = [one for one in table.versions if one.start <= at < one.end]
        return {one.key: one.row for one in alive if _within(reached, one)}

    def _write_page(self, page: ModelPage, at: Mapping[RelationId, Epoch]) -> int:
        stage, driver = self.meaning.stage, {one.key: one.row for one in page.versions}
        if stage.is_whole:
            return 0
        states, vnodes = self._states(at), {one.key: one.vnode for one in page.versions}
        if stage.aggregate is not None:
            for key, sums in self.meaning.sums(states, driver).items():
                group = PartialGroup(self.epoch, self.meaning.vnode(key, 0), key, sums)
                self.writing.logged.append((self.target, group))
            return 0
        if stage.partition is not None:
            upstream = self.meaning.bound.upstream.id
            places = self._vnodes(upstream, at[upstream])
            found = stages.begun(self.meaning, states[upstream], places.__getitem__, driver.__contains__)
            made = [(key, row, 0) for key, row in found.items()]
        else:
            rows = self.meaning.rows(states, driver)
            made = [(key, row, vnodes[first]) for key, (row, first) in rows.items()]
        self._insert(made)
        return len(made)

    def _add(self, sums: Mapping[Key, tuple[int, ...]]) -> Written:
        target, alive = self.target, self.target.alive()
        written = Written(0, 0)
        for key, more in sums.items():
            if not any(more):
                continue
            before = alive.get(key)
            now = more
            if before is not None:
                now = tuple(map(sum, zip(self.meaning.sums_of(before.row), more, strict=True)))
                self.writing.closed.append((target, key, self.epoch))
            if now[0] > 0:
                self._insert([(key, self.meaning.group(now), 0)])
            written = Written(written.inserted + (now[0] > 0), written.closed + (before is not None))
        return written

    def _insert(self, made: Sequence[tuple[Key, Row, int]]) -> None:
        target = self.target
        for key, row, vnode in made:
            self.writing.inserted.append((target, Version(self.meaning.vnode(key, vnode), key, row, self.epoch)))

    def _rows(self, states: States, at: Mapping[RelationId, Epoch]) -> dict[Key, tuple[Row, int]]:
        """Return the rows, each with the vnode of its driver's row."""
        if self.meaning.stage.partition is not None:
            return {key: (row, 0) for key, row in stages.whole(self.meaning, states).items()}
        upstream = self.meaning.bound.upstream.id
        vnodes = self._vnodes(upstream, at[upstream])
        rows = self.meaning.rows(states, stages.seen(states, self.meaning.stage.driver))
        return {key: (row, vnodes[first]) for key, (row, first) in rows.items()}

    def _states(self, at: Mapping[RelationId, Epoch]) -> dict[Any, dict[Key, Row]]:
        return {one: self.tables.table(one).rows(epoch) for one, epoch in at.items()}

    def _vnodes(self, relation: RelationId, at: Epoch) -> dict[Key, int]:
        return {one.key: one.vnode for one in self.tables.table(relation).versions if one.start <= at < one.end}


def _within(reached: Reached, one: Version) -> bool:
    last = reached.keys.get(one.vnode)
    return one.vnode in reached.completed or (last is not None and ranked(one.key) <= ranked(key_at(last)))


def summed(partials: Iterable[PartialGroup]) -> dict[Key, tuple[int, ...]]:
    """Return the sums of groups from partial groups."""
    groups: dict[Key, tuple[int, ...]] = {}
    for one in partials:
        groups = _with(groups, {one.key: one.sums})
    return groups


def _with(sums: Mapping[Key, tuple[int, ...]], more: Mapping[Key, tuple[int, ...]]) -> dict[Key, tuple[int, ...]]:
    return {
        key: tuple(
            map(sum, zip(sums.get(key) or (0,) * len(more[key]), more.get(key) or (0,) * len(sums[key]), strict=True))
        )
        for key in {**sums, **more}
    }


def _without(sums: Mapping[Key, tuple[int, ...]], less: Mapping[Key, tuple[int, ...]]) -> dict[Key, tuple[int, ...]]:
    return _with(sums, {key: tuple(-one for one in values) for key, values in less.items()})
