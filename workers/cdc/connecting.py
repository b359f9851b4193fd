"""Connections to the external database: how one is made, how long it is waited for, and what goes wrong on it.

A session gives up by itself: it waits for no lock and no answer for long, and it is known by its name. What keeps it
from answering is an `AwayError`, which says why in words that hold no secret; the epoch goes on without the source.
"""

import os
import socket
import struct
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

from service.protocol.answering import TCP_INFO_BYTES, LateError, UnansweredError, bounded, bytes_received
from workers.cdc.apply import is_refusal, reason_of
from workers.cdc.pgoutput import DecodingError

SETUP: Final = (
    "set statement_timeout = '20s'",
    # Behind whoever waits for an exclusive lock everybody there would queue, and the barrier here waits as well.
    "set lock_timeout = '300ms'",
    # What a policy hides is refused, not left out.
    "set row_security = off",
    # A type outside of pg_catalog is printed with its schema, whatever the login's own path: so the plan has it too.
    "set search_path = pg_catalog",
    "set idle_in_transaction_session_timeout = '60s'",
    # Values travel as texts, which are to mean the same there and here.
    "set datestyle = 'ISO, YMD'",
    "set intervalstyle = 'postgres'",
    "set extra_float_digits = 3",
    "set bytea_output = 'hex'",
    "set timezone = 'UTC'",
    # A flush is waited for, a standby is not.
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
"""How long a server may take to answer what costs it nothing."""
ANSWER_SECONDS: Final = 25.0
"""How long it may take for anything else: a little more than it allows itself."""
EPOCH_SECONDS: Final = 40.0
"""How long an epoch waits for all that it asks besides the log and pages;"""
PART_SECONDS: Final = 3.0
"""for each part of the log at least so long, for it may have to ask where the keys of every part lie."""
ANSWER_BYTES_MAX: Final = 512 << 20
"""How much it may send in one answer, which is in memory whole."""
_CHANGED: Final = ("42703", "42P01", "42804", "42883", "42846", "3F000")
"""SQLSTATEs of a table that is not the one that was described."""

_LOCKED, _CANCELLED, _FORBIDDEN = "55P03", "57014", "42501"
_HELD_UP: Final = (_LOCKED, _CANCELLED, _FORBIDDEN)
"""SQLSTATEs of what concerns one table, and passes: a lock, a limit of time, a privilege that was taken away."""
_NONSENSE: Final = (ArithmeticError, AssertionError, DecodingError, LookupError, TypeError, ValueError, struct.error)
"""What comes of answers that no Postgres gives."""

kept: Final[dict[tuple[int, str, str], "Patient"]] = {}
"""The sessions of this process: one of each source."""

Answer = TypeVar("Answer")


class AwayError(Exception):
    """The external database cannot be followed now; the text says why."""


class HeldUpError(AwayError):
    """What was asked for cannot be had now, other things can. `slow`: it took too long."""

    def __init__(self, reason: str, *, slow: bool = False) -> None:
        super().__init__(reason)
        self.slow = slow


class TooMuchError(AwayError):
    """An answer is larger than any is taken."""


class ChangedError(Exception):
    """The external table is not the one that was described; the text says why."""


class Patient(psycopg.Connection[TupleRow]):
    """A session that waits so long for each answer, and closes itself then: a server that hangs keeps no limits."""

    patience: float = ANSWER_SECONDS
    left: float = float("inf")
    """How long it waits altogether before somebody allows it more."""
    waited: float = 0.0
    """How many seconds it has waited so far."""

    def allow(self, seconds: float) -> None:
        """Have at least so long for what is asked next."""
        self.left = max(self.left, seconds)

    def wait(self, gen: PQGen[Answer], interval: float = 0.1, timeout: float | None = None) -> Answer:
        """See psycopg. Raises OperationalError where no answer has come in time, TooMuchError."""
        try:
            return self._wait(gen, self.patience, interval, timeout)
        except LateError as error:
            self.pgconn.finish()
            raise psycopg.OperationalError(str(error)) from None

    def wait_for(self, gen: PQGen[Answer], seconds: float) -> Answer | None:
        """Return what comes; None where that takes longer: then somebody asks for it again."""
        try:
            return self._wait(gen, seconds, min(seconds, 0.1), None)
        except LateError:
            return None

    def _wait(self, gen: PQGen[Answer], seconds: float, interval: float, timeout: float | None) -> Answer:
        began, received = _monotonic(), partial(_received, self.pgconn.socket)
        if self.left <= 0.0:
            # Else an answer in many pieces, each of which is there when it is asked for, would have no end.
            raise LateError("no answer in the time that was left")
        seconds = min(seconds, self.left)
        within = bounded(gen, clock=_monotonic, received=received, seconds=seconds, most_bytes=ANSWER_BYTES_MAX)
        try:
            return super().wait(within, interval, timeout)
        except LateError:
            raise
        except UnansweredError as error:
            self.pgconn.finish()
            raise TooMuchError(str(error)) from None
        finally:
            took = _monotonic() - began
            self.left, self.waited = max(self.left - took, 0.0), self.waited + took


def connect(conninfo: str, slot: str) -> Patient:
    """Open a session. Raises AwayError."""
    try:
        connection = Patient.connect(conninfo, autocommit=True, application_name=f"tidefill:cdc:{slot}", **_REACHED)
    except psycopg.OperationalError as error:
        raise AwayError(f"the external database does not answer: {reason_of(error)}") from error
    except psycopg.Error as error:
        # What it says may quote the connection string.
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
    """Give this process's session of a source; one that met an error is closed. Raises AwayError."""
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
    """Sort what goes wrong there: AwayError, ChangedError, or the refusal of a value as it is."""
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
    """Have answers that are not understood keep nobody but the source. Raises AwayError."""
    try:
        yield
    except _NONSENSE as error:
        raise AwayError(f"what the external database answers is not understood: {error!r:.200}") from error


def sql(text: str) -> Any:
    """Psycopg wants literal strings; these are printed from quoted identifiers and literals."""
    return text


def _monotonic() -> float:
    return time.monotonic()  # noqa: TID251 - the connection owns the clock of its patience


def _received(descriptor: int) -> int:
    """Return how much a connection has brought so far; 0 where the system does not say."""
    try:
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as one:
            return bytes_received(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES))
    except (AttributeError, OSError):
        return 0
