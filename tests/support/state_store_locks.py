"""Holding a worker's writers at a place of one's choice."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress

import psycopg

from tests.support.service import Service
from tests.support.waiting import until

_AT_THE_FENCE = (
    "select pid from pg_stat_activity where application_name ~ '^tidefill:[0-9]+:[0-9]+$'"
    " and wait_event_type = 'Lock' and backend_xid is not null and query like '%hold_generation%'"
)


@contextmanager
def writers_held(service: Service) -> Generator[list[int]]:
    """Hold every writing transaction of the worker at its last statement: its rows are written and not committed.

    Gives the server's processes that wait. The server may be killed meanwhile.
    """
    with suppress(psycopg.OperationalError), psycopg.connect(service.database_url()) as connection:
        connection.execute("select from state.fence where graph = 1 for update")
        yield until(lambda: waiting_writers(service) or None, what="a writer at its last statement")


@contextmanager
def writers_awaited(service: Service, *, seconds: float) -> Generator[None]:
    """Hold the writers of every graph at their last statement until one waits there, if one comes in time. The server
    may be away, or be killed meanwhile.
    """
    with ExitStack() as stack:
        with suppress(psycopg.OperationalError, AssertionError):
            connection = psycopg.connect(service.database_url())
            stack.callback(connection.close)
            connection.execute("select from state.fence for update")
            until(lambda: waiting_writers(service) or None, what="a writer at its last statement", seconds=seconds)
        yield


def waiting_writers(service: Service) -> list[int]:
    """Return the server's processes that wait for the fence with rows of theirs uncommitted."""
    return [int(pid) for (pid,) in service.stored(_AT_THE_FENCE)]
