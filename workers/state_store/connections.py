"""Connections of one process, cached by purpose: opening one costs more than a small epoch.

Every session of an epoch is called `tidefill:<graph>:<generation>`, so that a recovery can end those of older
generations, and a session is closed when one of another name is asked for. A connection that met an error is closed,
never reused: a failed COPY keeps its locks.
"""

import atexit
import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

import adbc_driver_postgresql.dbapi as adbc
import psycopg

from service.protocol.ids import Generation, GraphId, RequestId

_EXACT: Final = ("set timezone = 'UTC'", "set datestyle = 'ISO'", "set extra_float_digits = 1", "set jit = off")
_READING: Final = (*_EXACT, "set max_parallel_workers_per_gather = 0", "set enable_seqscan = off")
_READ_ONLY: Final = "set default_transaction_read_only = on"
_BITMAP: Final = ("set enable_indexscan = off", "set enable_indexonlyscan = off")
BOUNDS: Final = (*_READING, _READ_ONLY, "set enable_bitmapscan = off")
"""Where a page ends is found by following the storage index so many keys: a bitmap would read a whole vnode first."""
PAGES: Final = (*_READING, _READ_ONLY, *_BITMAP)
"""The rows of a page are read in the order in which they lie: following the index would come back to each block."""
CHANGES: Final = (*_READING, _READ_ONLY, *_BITMAP)
"""What an epoch changed lies together; an index on the vnode would lead through the whole history."""
_BOUNDED: Final = ("set idle_in_transaction_session_timeout = '60s'", "set lock_timeout = '30s'")
WRITING: Final = (*_READING, *_BOUNDED)
_OTHERS: Final = ("enable_hashjoin", "enable_mergejoin", "enable_material", "enable_bitmapscan")
ONLY_BY_KEY: Final = tuple(f"set {other} = off" for other in _OTHERS)
BY_KEY: Final = tuple(f"set local {other} = off" for other in _OTHERS)
"""Versions that end are found each by its key. Of a table that grows there are no statistics, and a plan made without
them reads all of it for a few.
"""
BY_INDEX: Final = ("set local enable_indexscan = on", "set local enable_indexonlyscan = on")
"""From here on, in a session that reads what lies together."""
ANYHOW: Final = tuple(f"set local {other} = on" for other in _OTHERS)
COPYING: Final = (*_READING, *_BITMAP, *_BOUNDED)

KEPT: Final = 32
"""Connections kept by one process: the five purposes, of the database graph and of a few beside it; of the worker
itself three for each actor that copies.
"""

Purpose = tuple[int, str, str, tuple[str, ...]]
"""A process, driver and server, graph, and what is done."""

_open: list[tuple[Purpose, str, Any]] = []
"""Those that nobody uses now, with their names; the least recently used first."""
_lock = threading.Lock()


def application_name(graph: GraphId, generation: Generation) -> str:
    """Return the name under which a generation's sessions are known."""
    return f"tidefill:{graph}:{generation}"


def question_name(graph: GraphId, question: RequestId) -> str:
    """Return the name under which the sessions of one question are known: no generation's, and each question's own,
    so that none meets a session that died since the last one.
    """
    return f"tidefill:{graph}:question:{question}"


@contextmanager
def adbc_connection(url: str, name: str, setup: Sequence[str], *, autocommit: bool) -> Generator[Any]:
    """Give a cached Arrow connection; on an error it is closed."""

    def connect() -> Any:
        connection = adbc.connect(_named(url, name), autocommit=autocommit)
        with connection.cursor() as cursor:
            for statement in setup:
                cursor.execute(statement)
        if not autocommit:
            connection.commit()
        return connection

    with _cached("adbc", url, name, (*setup, str(autocommit)), connect) as connection:
        yield connection


@contextmanager
def psycopg_connection(url: str, name: str, setup: Sequence[str]) -> Generator[psycopg.Connection]:
    """Give a cached psycopg connection outside any transaction; on an error it is closed."""

    def connect() -> psycopg.Connection:
        connection = psycopg.connect(url, application_name=name, autocommit=True)
        for statement in setup:
            connection.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue] - our own constants
        return connection

    with _cached("psycopg", url, name, tuple(setup), connect) as connection:
        yield connection


@contextmanager
def _cached(driver: str, url: str, name: str, setup: tuple[str, ...], connect: Any) -> Generator[Any]:
    purpose = (os.getpid(), f"{driver}:{url}", name.rpartition(":")[0], setup)
    connection = _taken(purpose, name) or connect()
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    _keep(purpose, name, connection)


def _taken(purpose: Purpose, name: str) -> Any:
    """Take a connection for a purpose; close one of another name, which is of another generation."""
    with _lock:
        place = next((place for place, (kept, _, _) in enumerate(_open) if kept == purpose), None)
        known = None if place is None else _open.pop(place)
    if known is None or known[1] == name:
        return None if known is None else known[2]
    known[2].close()
    return _taken(purpose, name)


def _keep(purpose: Purpose, name: str, connection: Any) -> None:
    with _lock:
        _open.append((purpose, name, connection))
        mine = [place for place, (kept, _, _) in enumerate(_open) if kept[0] == purpose[0]]
        last = _open.pop(mine[0]) if len(mine) > KEPT else None
    if last is not None:
        last[2].close()


@atexit.register
def _close_kept() -> None:
    """A process that was forked has its parent's connections in its list, and leaves them alone."""
    for (pid, *_), _, connection in _open:
        if pid == os.getpid():
            connection.close()


def _named(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}application_name={quote(name, safe='')}"
