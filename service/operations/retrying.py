"""Run an operation again if Postgres ended its transaction as the victim of a deadlock.

This is the one place that does so. The lock order in `service.meta_store.schema.lock_order` makes deadlocks rare.
"""

from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from service.domain.errors import Deadlocked, Unavailable
from service.operations.polling import rest
from service.operations.world import Context
from service.telemetry.log import logger

TRIES: Final = 8
PAUSE_FIRST: Final = timedelta(milliseconds=10)
"""The pause doubles with each try. The winner of a deadlock commits within milliseconds."""

P = ParamSpec("P")
T = TypeVar("T")
log = logger("meta_store")


class _Within(Protocol):
    @property
    def world(self) -> Context: ...


W = TypeVar("W", bound=Context | _Within)


def retried(
    operation: Callable[Concatenate[W, P], Awaitable[T]],
) -> Callable[Concatenate[W, P], Coroutine[Any, Any, T]]:
    """Decorate an operation whose first transaction that locks rows is its last one, or that may be repeated.

    Its effects are in the database, so nothing is left of a transaction that was rolled back. Raises Unavailable after
    `TRIES` deadlocks.
    """

    @wraps(operation)
    async def run(within: W, *args: P.args, **kwargs: P.kwargs) -> T:
        world = within if isinstance(within, Context) else within.world
        for tried in range(1, TRIES + 1):
            try:
                return await operation(within, *args, **kwargs)
            except Deadlocked as error:
                world.metrics.deadlocks.inc()
                log.warning("transaction.deadlocked", operation=operation.__qualname__, tried=tried, error=str(error))
                if tried == TRIES:
                    raise Unavailable(error.message) from error
            await rest(world, PAUSE_FIRST * 2 ** (tried - 1))
        raise AssertionError(TRIES)

    return run
