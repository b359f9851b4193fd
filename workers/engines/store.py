"""The engine for queries that the state store can answer itself: no rows travel to Spark.

Pages are copied inside the store, with one thread of the worker per actor. After all history is read, changes need no
marking, and are copied inside the store as well.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

from service.protocol.plan import Pushdown
from workers.backfill.reading import Reading
from workers.engines.history import ActorHistory, outcome_of
from workers.engines.port import ActorOutcome, EpochTask, ScanTask
from workers.state_store.port import NOTHING, Replayed, has_store_engine

T = TypeVar("T")


def copied_in_store(query: Pushdown | None, reading: Reading, *, finished: bool) -> bool:
    """Whether the store computes an epoch alone: it answers the query, and either nothing changed, or no change needs
    marking because history is `finished`.
    """
    return query is not None and (finished or not reading.changes)


class Copiers:
    """Threads that compute in the store, at most `at_once` at a time, as many as Spark would run tasks."""

    def __init__(self, name: str, at_once: int) -> None:
        self.at_once = at_once
        self._threads = ThreadPoolExecutor(at_once, name)
        self._over: Future[Any] = Future()

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run all calls and return their results in order. Raises the first error; InterruptedError if given up."""
        copies = [self._threads.submit(call) for call in calls]
        waiting: set[Future[Any]] = {*copies, self._over}
        while not all(copy.done() for copy in copies):
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for one in done:
                one.result()
        return [copy.result() for copy in copies]

    def read(self, history: ActorHistory) -> None:
        """Read the pages of an actor. Raises InterruptedError between two of them after `give_up`."""
        for _ in history.pages():
            self.assure_wanted()

    def assure_wanted(self) -> None:
        """Raise InterruptedError after `give_up`."""
        if self._over.done():
            raise InterruptedError

    def give_up(self) -> None:
        """See `ScanEngine`."""
        if not self._over.done():
            self._over.set_exception(InterruptedError("the generation is over"))


class StoreEngine:
    """Copies in the store, for at most `at_once` actors at a time."""

    def __init__(self, scan: ScanTask, *, at_once: int) -> None:
        self._scan = scan
        self._copiers = Copiers(f"copy-{scan.target.id}", min(scan.actors, at_once))

    def run(self, task: EpochTask) -> list[ActorOutcome]:
        """See `ScanEngine`."""
        indexes = range(len(task.actors))
        return self._copiers.run([partial(self._copy_rows, task, index) for index in indexes])

    def give_up(self) -> None:
        """See `ScanEngine`."""
        self._copiers.give_up()

    def _copy_rows(self, task: EpochTask, index: int) -> ActorOutcome:
        """Do for one actor what `read_rows` and the Spark job would do, in an epoch in which no rows travel."""
        history = ActorHistory.of(self._scan, task, index)
        changes = _copy_changes(self._scan, task, index)
        self._copiers.read(history)
        inserted = history.copied + changes.written.inserted
        told = {"upstream_rows": changes.read, "inserted": inserted, "closed": changes.written.closed}
        return outcome_of({**history.report(), **told})


def _copy_changes(scan: ScanTask, task: EpochTask, index: int) -> Replayed:
    reading = task.reading
    if not reading.changes:
        return NOTHING
    assert scan.pushdown is not None
    assert has_store_engine(scan.store)
    return scan.store.copy_changes(
        scan.upstream,
        scan.target,
        scan.pushdown,
        after=reading.after,
        upto=reading.upto,
        runs=task.actors[index].runs,
        epoch=task.curr,
    )
