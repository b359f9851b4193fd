"""Live changes at a steady pace: several threads insert, update, move keys and delete."""

import threading
from dataclasses import dataclass, field
from typing import Final, Self

from tests.bench.clock import monotonic, pause
from tests.bench.tables import Table
from tests.support.service import Service
from tests.support.waiting import until

THREADS: Final = 8
BATCH: Final = 400
"""Rows of a statement. It is answered with its epoch, one to three intervals later: threads and rows enough that none
has to be late.
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
        until(lambda: self.error or self.changed >= THREADS * BATCH, what="the writers are answered")

    def _write(self, number: int) -> None:
        turn, ours = 0, 0
        while not self.stop.is_set():
            # Writers take turns from the start; one that was kept waiting does not wait until it has caught up.
            due = self._began + (ours + BATCH * number / THREADS) * THREADS / self.rows_per_second
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
            turn, ours = turn + 1, ours + max(rows, BATCH // 5)
            with self.lock:
                self.changed += rows

    def _statement(self, number: int, turn: int) -> str:
        name = self.table.name
        first = 1 + (number * self.table.rows // THREADS + turn * 7919) % max(self.table.rows - BATCH, 1)
        batch = f"id BETWEEN {first} AND {first + BATCH - 1}"
        match turn % 5:
            case 0 | 2:
                keys = range((number + 1) * APART + turn * BATCH, (number + 1) * APART + (turn + 1) * BATCH)
                rows = ", ".join(f"({key}, {key % 5000}, 'new', 150, '2026-06-01 12:00:00+00')" for key in keys)
                return f"INSERT INTO {name} (id, customer, status, amount, created) VALUES {rows}"
            case 1:
                return f"UPDATE {name} SET amount = amount + 50, status = 'paid' WHERE {batch}"
            case 3:
                return f"UPDATE {name} SET id = id + {(THREADS + 1) * APART} WHERE {batch}"
            case _:
                return f"DELETE FROM {name} WHERE {batch}"
