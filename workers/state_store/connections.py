"""Connections of one process, cached by purpose, because opening one costs more than a small epoch.

Every session of an epoch is named `tidefill:<graph>:<generation>`, so that a recovery can end the sessions of older
generations. A cached session is closed when the same purpose needs one of another name. A connection that met an error
is closed and never reused, because a failed COPY keeps its locks.
"""

import atexit
import math
import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

import adbc_driver_postgresql.dbapi as adbc

from service.protocol.ids import Generation, GraphId, RequestId
from workers.state_store.bounded_session import BoundedSession

_EXACT: Final = ("set timezone = 'UTC'", "set datestyle = 'ISO'", "set extra_float_digits = 1", "set jit = off")
_READING: Final = (*_EXACT, "set max_parallel_workers_per_gather = 0", "set enable_seqscan = off")
_READ_ONLY: Final = "set default_transaction_read_only = on"
_BITMAP: Final = ("set enable_indexscan = off", "set enable_indexonlyscan = off")
BOUNDS: Final = (*_READING, _READ_ONLY, "set enable_bitmapscan = off")
"""Settings for finding a page's upper key: follow the storage index for a limited number of keys. A bitmap scan would
read a whole vnode first.
"""
PAGES: Final = (*_READING, _READ_ONLY, *_BITMAP)
"""Settings for reading a page in physical order. Following the index would return to each disk block several times."""
CHANGES: Final = (*_READING, _READ_ONLY, *_BITMAP)
"""Settings for reading the changes of an epoch, which lie together. An index on the vnode would lead through the whole
history.
"""
_BOUNDED: Final = ("set idle_in_transaction_session_timeout = '60s'", "set lock_timeout = '30s'")
WRITING: Final = (*_READING, *_BOUNDED)
_OTHERS: Final = ("enable_hashjoin", "enable_mergejoin", "enable_material", "enable_bitmapscan")
ONLY_BY_KEY: Final = tuple(f"set {other} = off" for other in _OTHERS)
BY_KEY: Final = tuple(f"set local {other} = off" for other in _OTHERS)
"""Settings for ending versions, which are found by key, one by one. A growing table has no statistics, and a plan
without them reads the whole table for a few rows.
"""
ANYHOW: Final = tuple(f"set local {other} = on" for other in _OTHERS)
_TEMPORARY: Final = (
    "do $$ begin if (select rolsuper from pg_roles where rolname = current_user) then"
    " set temp_file_limit = '8GB'; end if; end $$"
)
"""Only a superuser may limit the temporary files of a session. A view of texts wrote 7 GB of them in 47 s."""
STAGING: Final = (*_READING, *_BOUNDED, _TEMPORARY)

KEPT: Final = 8
"""Maximum of cached connections in a process of tasks: the five purposes, and a few of another graph. Spark has a
handful of such processes, and those of 16 sinks kept all 200 connections of the server.
"""
KEPT_BY_WORKER: Final = 32
"""The same in the worker itself, which has three for each actor that copies."""

Purpose = tuple[int, str, str, tuple[str, ...]]
"""Process id, driver and URL, session name without the generation, and setup statements."""

_open: list[tuple[Purpose, str, Any]] = []
"""The idle connections with their session names, the least recently used first."""
_lock = threading.Lock()
_kept = KEPT


GRACE_SECONDS: Final = 5.0
"""How much later than its own timeout the server may answer."""


def keep(connections: int) -> None:
    """Keep so many idle connections in this process."""
    global _kept  # noqa: PLW0603 - the connections are those of the process
    _kept = connections


def application_name(graph: GraphId, generation: Generation) -> str:
    """Return the session name of a generation."""
    return f"tidefill:{graph}:{generation}"


def question_name(graph: GraphId, question: RequestId) -> str:
    """Return the session name of one request. It contains no generation, so no recovery ends the session. It is unique
    to the request, so no request gets a cached session that has died since the last one.
    """
    return f"tidefill:{graph}:question:{question}"


@contextmanager
def adbc_connection(url: str, name: str, setup: Sequence[str], *, autocommit: bool) -> Generator[Any]:
    """Yield a cached Arrow connection; it is closed on an error."""

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
def psycopg_connection(url: str, name: str, setup: Sequence[str]) -> Generator[BoundedSession]:
    """Yield a cached psycopg connection outside any transaction; it is closed on an error."""

    def connect() -> BoundedSession:
        connection = BoundedSession.connect(url, application_name=name, autocommit=True)
        for statement in setup:
            connection.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue] - our own constants
        return connection

    with _cached("psycopg", url, name, tuple(setup), connect) as connection:
        yield connection
        connection.patience = math.inf


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
    """Take an idle connection of a purpose. Close those of another session name: they belong to another generation."""
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
        last = _open.pop(mine[0]) if len(mine) > _kept else None
    if last is not None:
        last[2].close()


@atexit.register
def _close_kept() -> None:
    """Close this process's idle connections. A forked process also lists its parent's and must not close them."""
    for (pid, *_), _, connection in _open:
        if pid == os.getpid():
            connection.close()


def _named(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}application_name={quote(name, safe='')}"
