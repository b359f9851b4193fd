"""Read rows that the external database streams, as they come.

A wait that times out loses no row, so the caller can wait again later.
"""

from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Wait

from workers.cdc.apply import COPY_END, COPY_HEADER, sending
from workers.cdc.connecting import AwayError, Patient, asking

_TAKEN_TOGETHER: Final = 256
"""How many rows are taken together at most. It spreads the cost per call, and needs little memory."""
_CANCEL_SECONDS: Final = 2.0


def stream(connection: Patient, query: str) -> Generator[list[bytes]]:
    """Yield the rows of a COPY in batches, as they come. Closing the generator early cancels the COPY."""
    rows = Streaming.begin(connection, query)
    try:
        while not rows.over:
            some = rows.take(connection.patience)
            if some is None:
                raise AwayError(f"no row within {connection.patience:g} s")
            if some:
                yield some
    finally:
        rows.close()


@dataclass
class Streaming:
    """A binary COPY, without its header and its trailer."""

    connection: Patient
    over: bool = False
    _copying: bool = False
    _sent: bool = False
    """Whether all rows have come."""
    _before: bytes = COPY_HEADER

    @classmethod
    def begin(cls, connection: Patient, query: str) -> "Streaming":
        """Send the query as a COPY. Raises AwayError."""
        with asking():
            connection.wait(sending(connection.pgconn, f"copy ({query}) to stdout (format binary)".encode()))
        return cls(connection)

    def take(self, seconds: float) -> list[bytes] | None:
        """Return some rows: no row at the end, None where none has come in time. Raises what `asking` does."""
        with asking():
            return self.connection.wait_for(self._take(), seconds)

    def close(self) -> None:
        """Cancel the COPY, so that the session is free again. Close the session if that fails."""
        if self.over or self.connection.closed:
            return
        connection, self.over = self.connection, True
        if connection.left <= 0.0:
            # No time is left to wait for a cancellation, so close the session at once.
            connection.close()
            return
        with suppress(psycopg.Error):
            connection.cancel_safe(timeout=_CANCEL_SECONDS)
        try:
            ended = connection.wait_for(_drained(connection.pgconn), _CANCEL_SECONDS)
        except psycopg.Error:
            ended = None
        if not ended:
            connection.close()

    def _take(self) -> PQGen[list[bytes]]:
        pgconn = self.connection.pgconn
        if not self._copying:
            _check(result := (yield from _result(pgconn)), ExecStatus.COPY_OUT)
            self._copying = result is not None
        taken: list[bytes] = []
        while not self._sent and len(taken) < _TAKEN_TOGETHER:
            # Waiting costs more than a row, so wait only after all received rows are taken.
            size, row = pgconn.get_copy_data(1)
            self._sent = size < 0
            if size > 0:
                taken += self._row(bytes(row))
            elif taken:
                break
            elif not self._sent:
                yield Wait.R
                pgconn.consume_input()
        if taken:
            return taken
        _check((yield from _result(pgconn)), ExecStatus.COMMAND_OK)
        self.over = yield from _drained(pgconn)
        return taken

    def _row(self, sent: bytes) -> list[bytes]:
        if not sent.startswith(self._before):
            raise AwayError("not the beginning of a binary COPY")
        row, self._before = sent[len(self._before) :], b""
        return [row] if len(row) > len(COPY_END) else []


def _check(result: PGresult | None, status: ExecStatus) -> None:
    if result is None or result.status != status:
        raise AwayError("no COPY was begun") if result is None else error_from_result(result)


def _result(pgconn: PGconn) -> PQGen[PGresult | None]:
    while pgconn.is_busy():
        yield Wait.R
        pgconn.consume_input()
    return pgconn.get_result()


def _drained(pgconn: PGconn) -> PQGen[bool]:
    """Read and discard all remaining results. Return True."""
    while (result := (yield from _result(pgconn))) is not None:
        while result.status == ExecStatus.COPY_OUT and (size := pgconn.get_copy_data(1)[0]) >= 0:
            if size == 0:
                yield Wait.R
                pgconn.consume_input()
    return True
