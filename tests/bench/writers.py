"""Live changes at a steady pace: several threads insert, update, move keys and delete."""

import threading
from dataclasses import dataclass, field
from typing import Final, Self

from tests.bench.clock import monotonic, pause
from tests.bench.tables import COLUMNS, CUSTOMERS, Table
from tests.support.service import Service
from tests.support.waiting import until

THREADS: Final = 8
BATCH_MIN: Final = 400
"""Rows of a statement. It is answered with its epoch, one to three intervals later: threads and rows enough that none
has to be late. So a statement has the rows of a second, if they are more.
"""
APART: Final = 1_000_000_000
"""Keys of one writer's own begin so far from another's, and from everything loaded."""


@dataclass
class Writers:
    """Change `rows_per_second` rows of a table until left; what a statement raises is raised then."""

    service: Service
    table: Table
    rows_per_second: float
    changed: int = 0
    error: Exception | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._batch = max(BATCH_MIN, round(self.rows_per_second / THREADS))

    def __enter__(self) -> Self:
        self._began = monotonic()
        self._threads = [threading.Thread(target=self._write, args=(n,), daemon=True) for n in range(THREADS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()
        if self.error is not None:
            raise self.error

    def until_steady(self) -> None:
        """Wait until every writer has been answered about once."""
        until(lambda: self.error or self.changed >= THREADS * self._batch, what="the writers are answered")

    def _write(self, number: int) -> None:
        turn, ours = 0, 0
        while not self.stop.is_set():
            # Writers take turns from the start; one that was kept waiting does not wait until it has caught up.
            due = self._began + (ours + self._batch * number / THREADS) * THREADS / self.rows_per_second
            pause(min(due - monotonic(), 1.0))
            if monotonic() < due:
                continue
            try:
                tag = str(self.service.run(self._statement(number, turn))["tag"])
            except Exception as error:  # noqa: BLE001 - raised when the writers are left
                self.error = error
                self.stop.set()
                return
            rows = int(tag.rsplit(maxsplit=1)[-1])
            # A batch may find few of its rows: they moved, or are gone.
            turn, ours = turn + 1, ours + max(rows, self._batch // 5)
            with self.lock:
                self.changed += rows

    def _statement(self, number: int, turn: int) -> str:
        name, size = self.table.name, self._batch
        first = 1 + (number * self.table.rows // THREADS + turn * 7919) % max(self.table.rows - size, 1)
        batch = f"id BETWEEN {first} AND {first + size - 1}"
        match turn % 5:
            case 0 | 2:
                own = (number + 1) * APART + turn * size
                return (
                    f"INSERT INTO {name} ({COLUMNS}) SELECT g, g % {CUSTOMERS}, 'new', 150,"
                    f" timestamptz '2026-06-01 12:00:00+00' FROM generate_series({own}, {own + size - 1}) g"
                )
            case 1:
                return f"UPDATE {name} SET amount = amount + 50, status = 'paid' WHERE {batch}"
            case 3:
                return f"UPDATE {name} SET id = id + {(THREADS + 1) * APART} WHERE {batch}"
            case _:
                return f"DELETE FROM {name} WHERE {batch}"
