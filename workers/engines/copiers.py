"""Threads of the worker in which the state store computes: one call for each of them."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from workers.engines.history import ActorHistory

T = TypeVar("T")


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
        """Make `run` on another thread fail soon. Nothing of it can be written any more (I7)."""
        if not self._over.done():
            self._over.set_exception(InterruptedError("the generation is over"))
