"""I14: the Delta table of a followed table has what its log has, whoever carried it, died, or woke up when."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from service.protocol.ids import Epoch, Generation
from service.protocol.relation import Relation, RelationKind
from tests.support.lakes import Lake, folder
from tests.unit.workers.test_deltalake import RELATION, Row, batches
from workers.connectors import deltalake
from workers.connectors.delta_carried import CarriedTable
from workers.connectors.port import Consumed, MovedError, RefusedTableError
from workers.state_store.port import CLOSE, LIVE, PAGE

FOLLOWED: Final = RELATION.model_copy(update={"kind": RelationKind.TABLE})
Entry = tuple[int, Row | None]
"""A row of the log with its epoch; no row is a truncation."""


class KilledError(Exception):
    """The worker ends here."""


class Followed:
    """A log, and the Delta table that it is carried into."""

    def __init__(self, lake: Lake, relation: Relation = FOLLOWED) -> None:
        self.lake, self.relation = lake, relation
        self.options = {"location": f"{lake.location}/t", "app": "tidefill-test"}
        deltalake.claim(self.options, relation)
        self.log: list[Entry] = []

    def begin(self, generation: int) -> tuple[CarriedTable, Consumed]:
        table = CarriedTable.of(self.options, self.relation, Generation(generation))
        return table, table.begin()

    def prepare(self, table: CarriedTable, had: Consumed, upto: int) -> tuple[int, bool]:
        """Prepare what a carrier would, and return how many rows it is, and whether the log was truncated."""
        table.clear()
        since = [place for place, (at, row) in enumerate(self.log) if row is None and had.changes < at <= upto]
        if since:
            last = {row[1]: row for at, row in self.log[since[-1] :] if row is not None and at <= upto}
            rows = [(PAGE, key, value) for _, (op, key, value) in last.items() if op != CLOSE]
        else:
            pages = [row for at, row in self.log if row is not None and row[0] == PAGE and had.pages < at <= upto]
            changes = {row[1]: row for at, row in self.log if row and row[0] != PAGE and had.changes < at <= upto}
            rows = [*pages, *changes.values()]
        table.writer.write(self.relation, Epoch(upto), batches(rows))
        return len(rows), bool(since)

    def carry(self, table: CarriedTable, had: Consumed, upto: int) -> Consumed:
        rows, truncated = self.prepare(table, had, upto)
        return table.commit(had, Epoch(upto), rows, truncated=truncated)

    def wanted(self, upto: int) -> list[tuple[int, str | None]]:
        rows: dict[Any, str | None] = {}
        for at, row in self.log:
            if at > upto:
                break
            if row is None:
                rows.clear()
            elif row[0] == CLOSE:
                rows.pop(row[1], None)
            else:
                rows[row[1]] = row[2]
        return sorted(rows.items())

    @property
    def rows(self) -> list[tuple[int, str | None]]:
        return sorted((one["Id"], one["v"]) for one in self.lake.rows())


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(folder(tmp_path))


def test_history_is_appended_and_changes_are_merged(followed: Followed) -> None:
    followed.log = [(1, (PAGE, 1, "a")), (1, (PAGE, 2, "b")), (2, (LIVE, 2, "c")), (2, (PAGE, 3, "d"))]
    table, had = followed.begin(0)  # the first generation
    had = followed.carry(table, had, 1)
    assert (followed.rows, had.pages, had.changes, had.rows) == ([(1, "a"), (2, "b")], 1, 0, 2)
    had = followed.carry(table, had, 2)
    assert (followed.rows, had.pages, had.changes, had.rows) == ([(1, "a"), (2, "c"), (3, "d")], 2, 2, 3)
    followed.log += [(3, (CLOSE, 1, None)), (3, (LIVE, 9, "e"))]
    had = followed.carry(table, had, 3)
    assert followed.rows == followed.wanted(3) == [(2, "c"), (3, "d"), (9, "e")]


def test_a_truncation_leaves_what_came_after_it(followed: Followed) -> None:
    followed.log = [(1, (PAGE, 1, "a")), (2, None), (2, (LIVE, 5, "x")), (3, (LIVE, 6, "y")), (3, (CLOSE, 5, None))]
    table, had = followed.begin(1)
    had = followed.carry(table, had, 1)
    had = followed.carry(table, had, 3)
    assert followed.rows == [(6, "y")]
    followed.log.append((4, None))
    had = followed.carry(table, had, 4)
    assert followed.rows == []
    assert (had.rows, had.pages, had.changes) == (0, 4, 4)


@pytest.mark.parametrize("call", ["create_write_transaction", "merge"])
def test_killed_between_two_commits_nothing_is_there_twice(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    followed.log = [(1, (PAGE, 1, "a")), (1, (PAGE, 2, "b")), (1, (LIVE, 2, "c")), (1, (LIVE, 7, "n"))]
    table, had = followed.begin(1)
    rows, truncated = followed.prepare(table, had, 1)
    with monkeypatch.context() as patch:

        def killed(*_: object, **__: object) -> None:
            raise KilledError

        patch.setattr(DeltaTable, call, killed)
        with pytest.raises(KilledError):
            table.commit(had, Epoch(1), rows, truncated=truncated)
    followed.log.append((2, (PAGE, 3, "d")))
    table, had = followed.begin(2)
    followed.carry(table, had, 2)
    assert followed.rows == followed.wanted(2) == [(1, "a"), (2, "c"), (3, "d"), (7, "n")]


def test_files_that_somebody_removed_are_missed(followed: Followed) -> None:
    followed.log = [(1, (LIVE, 1, "a"))]
    table, had = followed.begin(1)
    rows, truncated = followed.prepare(table, had, 1)
    table.clear()
    with pytest.raises(MovedError, match="of 1 rows"):
        table.commit(had, Epoch(1), rows, truncated=truncated)
    followed.carry(table, had, 1)
    assert followed.rows == [(1, "a")]


@pytest.mark.parametrize("truncated", [False, True])
def test_one_that_wakes_up_late_changes_nothing(followed: Followed, truncated: bool) -> None:
    followed.log = [*([(1, None)] if truncated else []), (1, (PAGE, 1, "a")), (1, (LIVE, 2, "b"))]
    old, before = followed.begin(1)
    rows, truncates = followed.prepare(old, before, 1)
    table, had = followed.begin(2)
    with pytest.raises(MovedError, match="newer generation"):
        old.commit(before, Epoch(1), rows, truncated=truncates)
    followed.carry(table, had, 1)
    assert followed.rows == [(1, "a"), (2, "b")]
    with pytest.raises(MovedError, match="newer generation"):
        old.begin()


def test_a_change_of_another_program_is_noticed_and_a_truncation_mends_it(followed: Followed) -> None:
    followed.log = [(1, (PAGE, 1, "a")), (1, (PAGE, 2, "b"))]
    table, had = followed.begin(1)
    had = followed.carry(table, had, 1)
    followed.lake.table().delete('"Id" = 1')
    followed.log.append((2, (LIVE, 2, "c")))
    for generation in (1, 2):
        table, had = followed.begin(generation)
        with pytest.raises(RefusedTableError, match=f"in version {had.version - generation + 1}"):
            followed.carry(table, had, 2)
    followed.log += [(3, None), (3, (LIVE, 5, "e"))]
    had = followed.carry(table, table.begin(), 3)
    followed.lake.table().optimize.compact()
    followed.log.append((4, (LIVE, 6, "f")))
    had = followed.carry(table, had, 4)
    assert followed.rows == followed.wanted(4) == [(5, "e"), (6, "f")]


@pytest.mark.parametrize("row", [(PAGE, 1, "a"), (LIVE, 1, "a")])
def test_one_that_is_about_to_commit_is_refused(followed: Followed, monkeypatch: pytest.MonkeyPatch, row: Row) -> None:
    """It has looked at the table already. The newer generation has removed its file, which no version may name."""
    followed.log = [(1, row)]
    old, before = followed.begin(1)
    rows, truncates = followed.prepare(old, before, 1)
    newer: list[tuple[CarriedTable, Consumed]] = []
    for name in ("create_write_transaction", "merge"):
        real = getattr(DeltaTable, name)

        def late(*given: Any, real: Any = real, **more: Any) -> Any:
            monkeypatch.undo()
            newer.append(followed.begin(2))
            return real(*given, **more)

        monkeypatch.setattr(DeltaTable, name, late)
    with pytest.raises(DeltaError):
        old.commit(before, Epoch(1), rows, truncated=truncates)
    ((table, had),) = newer
    assert (followed.rows, had.pages, had.changes) == ([], 0, 0)
    followed.carry(table, had, 1)
    assert followed.rows == [(1, "a")]


@pytest.mark.parametrize("seed", range(12))
def test_random_logs_kills_and_generations(followed: Followed, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    random = Random(seed)
    generation, epoch, paged = 1, 0, 0
    carriers = [followed.begin(1)]
    for _ in range(12):
        epoch += 1
        followed.log += _epoch(random, epoch, followed.wanted(epoch), paged)
        paged += 2
        table, had = carriers[-1]
        fails = random.random()
        with monkeypatch.context() as patch:
            if fails < 0.4:
                _kill_at(patch, random.randrange(3))
            try:
                carriers[-1] = table, followed.carry(table, had, epoch)
                assert followed.rows == followed.wanted(epoch)
            except KilledError:
                fails = 0.0
        if fails < 0.5:
            generation += 1
            carriers.append(followed.begin(generation))
    table, had = carriers[-1]
    followed.carry(table, had, epoch)
    assert followed.rows == followed.wanted(epoch)


def _epoch(random: Random, epoch: int, there: Sequence[tuple[int, str | None]], paged: int) -> list[Entry]:
    entries: list[Entry] = [(epoch, (PAGE, 100 + paged + at, f"p{epoch}")) for at in range(random.randrange(3))]
    if random.random() < 0.15:
        entries.append((epoch, None))
    for _ in range(random.randrange(4)):
        key = random.choice([one for one, _ in there] or [1]) if random.random() < 0.6 else random.randrange(20)
        entries.append((epoch, (CLOSE, key, None) if random.random() < 0.3 else (LIVE, key, f"v{epoch}")))
    return entries


def _kill_at(patch: pytest.MonkeyPatch, place: int) -> None:
    """End the worker before one of its commits, or after its last one."""
    seen = iter(range(10))
    for name in ("create_write_transaction", "merge"):
        real = getattr(DeltaTable, name)

        def call(*args: Any, real: Any = real, **more: Any) -> Any:
            if next(seen) == place:
                raise KilledError
            return real(*args, **more)

        patch.setattr(DeltaTable, name, call)
