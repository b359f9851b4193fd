"""The engine for queries that the state store can answer itself: nothing travels.

Pages are copied inside the store, on a thread of the worker for each actor. Once no history is left, changes need no
marking, and are carried over inside the store as well.
"""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from service.protocol.plan import Pushdown
from workers.backfill.reading import Reading
from workers.engines.history import ActorHistory, outcome_of
from workers.engines.port import ActorOutcome, EpochTask, ScanTask
from workers.state_store.port import Replayed, Written


def copied_in_store(query: Pushdown | None, reading: Reading, *, finished: bool) -> bool:
    """Whether nothing travels in an epoch: the store answers the query, and nothing changed, or nothing has to be
    marked since the history is `finished`.
    """
    return query is not None and (finished or not reading.changes)


class StoreEngine:
    """Copies in the store, at most `at_once` actors at a time: no more than Spark would run tasks."""

    def __init__(self, scan: ScanTask, *, at_once: int) -> None:
        self._scan = scan
        self._copiers = ThreadPoolExecutor(min(scan.actors, at_once), f"copy-{scan.target.id}")
        self._over: Future[ActorOutcome] = Future()

    def run(self, task: EpochTask) -> list[ActorOutcome]:
        """See `ScanEngine`."""
        copies = [
            self._copiers.submit(copy_rows, self._scan, task, index, self._over.done)
            for index in range(len(task.actors))
        ]
        waiting = {*copies, self._over}
        while not all(copy.done() for copy in copies):
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for one in done:
                one.result()
        return [copy.result() for copy in copies]

    def give_up(self) -> None:
        """See `ScanEngine`."""
        if not self._over.done():
            self._over.set_exception(InterruptedError("the generation is over"))


def copy_rows(scan: ScanTask, task: EpochTask, index: int, given_up: Callable[[], bool]) -> ActorOutcome:
    """Do what `read_rows` has one actor do in an epoch in which nothing travels."""
    history = ActorHistory(scan, task, index)
    changes = _copy_changes(scan, task, index)
    for _ in history.pages():
        if given_up():
            raise InterruptedError
    inserted = history.copied + changes.written.inserted
    told = {"upstream_rows": changes.read, "inserted": inserted, "closed": changes.written.closed}
    return outcome_of({**history.report(), **told})


def _copy_changes(scan: ScanTask, task: EpochTask, index: int) -> Replayed:
    reading = task.reading
    if not reading.changes:
        return Replayed(0, Written(0, 0))
    assert scan.pushdown is not None
    return scan.store.copy_changes(
        scan.upstream,
        scan.target,
        scan.pushdown,
        after=reading.after,
        upto=reading.upto,
        runs=task.actors[index].runs,
        epoch=task.curr,
    )
