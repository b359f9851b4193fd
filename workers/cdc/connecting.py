"""Open sessions with the external database, bound their waits, and classify their errors.

A session has time limits for locks and answers, and an application name with its slot. A database that cannot answer
raises `AwayError`, whose text contains no secret. The epoch then continues without the source.
"""

import os
import socket
import struct
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen

from service.protocol.answering import TCP_INFO_BYTES, LateError, UnansweredError, bytes_received
from service.protocol.cdc import timeouts_postgres
from workers.cdc.apply import is_refusal, reason_of
from workers.cdc.pgoutput import DecodingError
from workers.state_store.bounded_session import BoundedSession

SETUP: Final = (
    # The wait for a lock is short, because a session that waits for an exclusive lock blocks all later ones, and this
    # barrier waits for it.
    timeouts_postgres(statement="20s", lock="300ms", idle_in_transaction="60s"),
    # A query on rows that a policy hides fails instead of omitting them.
    "set row_security = off",
    # Print types outside pg_catalog with their schema, independent of the login's search path. The plan has them so.
    "set search_path = pg_catalog",
    # Values are sent as texts, which must mean the same in both databases.
    "set datestyle = 'ISO, YMD'",
    "set intervalstyle = 'postgres'",
    "set extra_float_digits = 3",
    "set bytea_output = 'hex'",
    "set timezone = 'UTC'",
    # A commit waits for the flush, but not for a standby.
    "set synchronous_commit = 'local'",
    "set enable_seqscan = off",
    "set max_parallel_workers_per_gather = 0",
    "set jit = off",
)
_REACHED: Final[Mapping[str, Any]] = {
    "connect_timeout": 2,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "client_encoding": "UTF8",
}
BRIEF_SECONDS: Final = 3.0
"""Time limit for the answer to a trivial query."""
ANSWER_SECONDS: Final = 25.0
"""Time limit for any other answer: a little more than the session's statement_timeout."""
EPOCH_SECONDS: Final = 40.0
"""How long an epoch waits for all its queries together, except those for the log and for pages."""
PART_SECONDS: Final = 3.0
"""The least time for the queries of each part of the log, because each part may have to look up its keys."""
ANSWER_BYTES_MAX: Final = 512 << 20
"""The largest answer, because an answer is in memory as a whole."""
_CHANGED: Final = ("42703", "42P01", "42804", "42883", "42846", "3F000")
"""SQLSTATEs that show that the external table's definition has changed."""

_LOCKED, _CANCELLED, _FORBIDDEN = "55P03", "57014", "42501"
_HELD_UP: Final = (_LOCKED, _CANCELLED, _FORBIDDEN)
"""SQLSTATEs of a temporary obstacle at one table: a lock, a time limit, a revoked privilege."""
_NONSENSE: Final = (ArithmeticError, AssertionError, DecodingError, LookupError, TypeError, ValueError, struct.error)
"""Errors raised while reading an answer that no Postgres would give."""

kept: Final[dict[tuple[int, str, str], "Patient"]] = {}
"""Idle sessions, one per source: (process id, connection string, slot) -> session."""

Answer = TypeVar("Answer")


class AwayError(Exception):
    """The external database cannot be followed now. The text says why."""


class HeldUpError(AwayError):
    """An error of one query that cannot be answered now, while others can. `slow`: it exceeded a time limit."""

    def __init__(self, reason: str, *, slow: bool = False) -> None:
        super().__init__(reason)
        self.slow = slow


class TooMuchError(AwayError):
    """An answer is larger than `ANSWER_BYTES_MAX`."""


class ChangedError(Exception):
    """The external table's definition has changed. The text says how."""


class Patient(BoundedSession):
    """A session with a time limit per answer, after which it closes itself, and one for all answers together."""

    patience: float = ANSWER_SECONDS
    left: float = float("inf")
    """How many seconds it may still wait in total, until `allow` grants more."""
    waited: float = 0.0
    """How many seconds it has waited so far."""

    def allow(self, seconds: float) -> None:
        """Grant at least this much time to the next queries."""
        self.left = max(self.left, seconds)

    def wait_for(self, gen: PQGen[Answer], seconds: float) -> Answer | None:
        """Return the generator's result. None where it takes longer: the caller may wait again later."""
        try:
            return self.within(gen, seconds, min(seconds, 0.1))
        except LateError:
            return None

    def within(self, gen: PQGen[Answer], seconds: float, interval: float, timeout: float | None = None) -> Answer:
        """See `BoundedSession`. Raises TooMuchError for too many bytes, and closes the session."""
        began = _monotonic()
        if self.left <= 0.0:
            # Without this check, an answer in many pieces could go on for ever, as long as each piece comes at once.
            raise LateError("no answer in the time that was left")
        try:
            return super().within(gen, min(seconds, self.left), interval, timeout)
        except LateError:
            raise
        except UnansweredError as error:
            self.pgconn.finish()
            raise TooMuchError(str(error)) from None
        finally:
            took = _monotonic() - began
            self.left, self.waited = max(self.left - took, 0.0), self.waited + took

    @property
    def answer_bytes_max(self) -> int:
        """See `BoundedSession`."""
        return ANSWER_BYTES_MAX

    def byte_counter(self) -> Callable[[], int]:
        """See `BoundedSession`."""
        return partial(_received, self.pgconn.socket)


def connect(conninfo: str, slot: str) -> Patient:
    """Open a session. Raises AwayError."""
    try:
        connection = Patient.connect(conninfo, autocommit=True, application_name=f"tidefill:cdc:{slot}", **_REACHED)
    except psycopg.OperationalError as error:
        raise AwayError(f"the external database does not answer: {reason_of(error)}") from error
    except psycopg.Error as error:
        # The message is not passed on, because it may quote the connection string.
        raise AwayError("the source's connection settings are not valid") from error
    connection.patience = BRIEF_SECONDS
    try:
        with asking():
            connection.execute(sql("; ".join(SETUP)))
    except BaseException:
        connection.close()
        raise
    connection.patience = ANSWER_SECONDS
    return connection


@contextmanager
def cached(conninfo: str, slot: str) -> Generator[Patient]:
    """Yield this process's session of a source, and close it after an error. Raises AwayError."""
    key = (os.getpid(), conninfo, slot)
    connection = kept.pop(key, None) or connect(conninfo, slot)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    kept[key] = connection


@contextmanager
def asking() -> Generator[None]:
    """Turn errors of the external database into AwayError, HeldUpError or ChangedError. A refused value stays as is."""
    try:
        yield
    except psycopg.Error as error:
        if is_refusal(error):
            raise
        if error.sqlstate in _CHANGED:
            raise ChangedError(reason_of(error)) from error
        if error.sqlstate in _HELD_UP:
            reason = "somebody holds an exclusive lock on it" if error.sqlstate == _LOCKED else reason_of(error)
            raise HeldUpError(reason, slow=error.sqlstate == _CANCELLED) from error
        raise AwayError(reason_of(error)) from error


@contextmanager
def understanding() -> Generator[None]:
    """Turn errors in reading an answer into AwayError, so that they stop this source only."""
    try:
        yield
    except _NONSENSE as error:
        raise AwayError(f"what the external database answers is not understood: {error!r:.200}") from error


def sql(text: str) -> Any:
    """Return `text` as a type that psycopg accepts: it wants literal strings, but these have quoted parts."""
    return text


def _monotonic() -> float:
    return time.monotonic()  # noqa: TID251 - the connection owns the clock of its patience


def _received(descriptor: int) -> int:
    """Return how many bytes a connection has received so far. 0 where the system does not say."""
    try:
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as one:
            return bytes_received(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES))
    except (AttributeError, OSError):
        return 0
