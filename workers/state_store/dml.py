"""Run DML on versioned tables: an epoch's statements, in order, in one transaction with a savepoint for each.

The statements run under a login of their own. They share a time budget, so that they cannot delay the barriers of other
jobs (I13). A statement that exceeds its share is rolled back to its savepoint and reported as unfinished. A statement
that has the epoch to itself fails when it exceeds its timeout.

Every statement is reduced to two sets: *ended* (rows whose versions end) and *brought* or *assigned* (rows that exist
afterwards). One SQL command then writes both, so that one net change per key and epoch remains.
"""

import math
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import psycopg
from psycopg import sql

from service.protocol.columns import Column
from service.protocol.dml import (
    Delete,
    DmlLimits,
    InsertStaged,
    InsertValues,
    Statement,
    StatementResult,
    Unfinished,
    Update,
)
from service.protocol.ids import Epoch, Generation, GraphId, RelationId, StatementId
from service.protocol.quoting import quoted
from service.protocol.relation import ALIVE, Relation, state_table
from service.protocol.vnodes import vnode_postgres
from workers.state_store.bounded_session import BoundedSession, NoAnswerError
from workers.state_store.connections import (
    GRACE_SECONDS,
    ONLY_BY_KEY,
    application_name,
    psycopg_connection,
)
from workers.state_store.loads import Beside, move
from workers.state_store.port import DmlOutcome, StatementBrokeError
from workers.state_store.postgres import hold_generation
from workers.state_store.statements import ENDED_AND_MADE, left_out, write

SETUP = (
    "set timezone = 'UTC'",
    "set jit = off",
    "set enable_seqscan = off",
    *ONLY_BY_KEY,
    "set idle_in_transaction_session_timeout = '60s'",
    "set lock_timeout = '30s'",
    # For the fence and the commands between statements. Each statement has its own timeout.
    "set statement_timeout = '60s'",
)
_CONNECTION_LOST: Final = ("08", "57P")
"""Prefixes of the SQLSTATEs of a lost connection or server. The text of a statement can raise any other SQLSTATE, so
any other one is an error of that statement alone (I13).
"""


_SHARE: Final = 0.5
"""The share of the epoch's budget that one statement may use when it shares the epoch. At least two statements are
decided in every epoch, and a slow one costs the others at most half a budget.
"""
_LEAST_MS: Final = 50
"""A statement is not begun with less time than this, or than its share. Its timeout also ends the commands around it,
such as SAVEPOINT, and then the statements behind it fail, too.
"""
_DEFAULTS: Final = DmlLimits()
_CANCELED: Final = "57014"
_SAID_CHARACTERS: Final = 2_000
"""How much of an error is told. It may quote a long value."""
_CANCEL_SECONDS: Final = 5.0
_CONTENDED: Final = ("40", "55P03", "25P02")
"""A deadlock, a lock timeout, or a command around the statement before that was ended by its timeout. The statement may
succeed in an epoch of its own.
"""


@dataclass(frozen=True, slots=True)
class DmlStore:
    """Runs users' statements under their own login: the port's `DmlWriter`."""

    url: str = field(repr=False)
    graph: GraphId
    generation: Generation
    clock: Callable[[], float] = time.monotonic  # noqa: TID251 - a budget is time

    def run(self, statements: Sequence[Statement], epoch: Epoch, limits: DmlLimits = _DEFAULTS) -> DmlOutcome:
        """Run statements at `epoch` and commit. A bad statement fails alone.

        Raises StatementBrokeError when the connection is lost during a statement. Raises psycopg.Error when it is lost
        elsewhere, or the generation is over (I7). The fence is the last command, outside every savepoint, so no error
        of a statement is mistaken for the fence's.
        """
        name = application_name(self.graph, self.generation)
        with psycopg_connection(self.url, name, SETUP) as connection, connection.transaction():
            run = _Run(self, connection, epoch, limits, alone=limits.patient and len(statements) == 1)
            for place, statement in enumerate(statements):
                if place > 0 and run.is_late:
                    run.not_reached += [one.id for one in statements[place:]]
                    break
                run.statement(statement)
            connection.patience = math.inf
            connection.execute("set local statement_timeout = '60s'")
            connection.execute(_sql(hold_generation(self.graph, self.generation)))
        return run.outcome()


class _FailedError(Exception):
    """A statement failed with a message and an SQLSTATE."""


class _SameKeyError(Exception):
    """A statement would give two rows the same key."""


class _Run:
    """The statements of one epoch under one budget."""

    def __init__(
        self,
        store: DmlStore,
        connection: BoundedSession,
        epoch: Epoch,
        limits: DmlLimits,
        *,
        alone: bool,
    ) -> None:
        self._store, self._connection, self._epoch, self._limits = store, connection, epoch, limits
        self._clock = store.clock
        self._alone = alone
        self._ends = self._clock() + limits.epoch_ms / 1000
        self._share_ms = limits.statement_ms if alone else min(int(limits.epoch_ms * _SHARE) or 1, limits.statement_ms)
        self._timeout_ms = 0
        self._results: list[tuple[RelationId, StatementResult]] = []
        self._deltas: dict[RelationId, int] = {}
        self.not_reached: list[StatementId] = []
        self._set_aside: list[StatementId] = []
        self._written: set[RelationId] = set()
        """The tables that this transaction may have written. A second session does not see that."""
        self._half_committed = False

    @property
    def left_ms(self) -> float:
        return (self._ends - self._clock()) * 1000

    @property
    def is_late(self) -> bool:
        """Whether too little time is left for a further statement."""
        return self.left_ms < min(_LEAST_MS, self._share_ms)

    def outcome(self) -> DmlOutcome:
        return DmlOutcome(
            tuple(result for _, result in self._results),
            tuple(relation for relation, _ in self._results),
            self._deltas,
            frozenset(relation for relation, result in self._results if result.affected),
            Unfinished(not_reached=tuple(self.not_reached), set_aside=tuple(self._set_aside)),
        )

    def statement(self, statement: Statement) -> None:
        """Run one statement in a savepoint and record its result."""
        self._arm(statement)
        relation = statement.relation.id
        try:
            with self._connection.transaction():
                affected, delta = self._apply(statement)
        except _SameKeyError:
            self._refuse(statement, "the statement would give two rows the same key", "21000")
        except psycopg.Error as error:
            lost = (error.sqlstate or "").startswith(_CONNECTION_LOST)
            if lost or self._connection.closed or self._half_committed:
                stuck = isinstance(error, NoAnswerError)
                raise StatementBrokeError(statement.id, error, too_slow=stuck) from error
            self._failed(statement, error.diag.message_primary or str(error), error.sqlstate or "")
        except _FailedError as error:
            self._failed(statement, *error.args)
        else:
            self._results.append((relation, StatementResult(id=statement.id, affected=affected)))
            self._deltas[relation] = self._deltas.get(relation, 0) + delta

    def _apply(self, statement: Statement) -> tuple[int, int]:
        """Return (rows that the user affected, change of the number of live keys)."""
        self._half_committed = False
        alone = statement.relation.id not in self._written
        self._written.add(statement.relation.id)
        if isinstance(statement, InsertStaged):
            return move(self._connection, partial(self._beside, statement) if alone else None, statement, self._epoch)
        # As a literal, so that `pg_stat_activity` shows it.
        attempt = sql.SQL("select * from state.attempt({})").format(command(statement, self._epoch))
        row = self._connection.execute(attempt).fetchone()
        assert row is not None
        *counts, told, state = row
        if state is not None:
            raise _FailedError(told, state)
        affected, ended, made, lost = map(int, counts)
        if lost:
            raise _SameKeyError
        return affected, made - ended

    @contextmanager
    def _beside(self, statement: InsertStaged) -> Generator[Beside]:
        """Yield a second session for a half of a slice; fence and commit it when the block ends without an error.

        Raises StatementBrokeError if the session is lost, or if it is not known whether it has committed.
        """
        complete = False
        name = application_name(self._store.graph, self._store.generation)
        try:
            with (
                psycopg_connection(self._store.url, name, SETUP) as other,
                ThreadPoolExecutor(1) as threads,
                other.transaction(),
                _canceled_on_error(other),
            ):
                other.execute(_sql(f"set local statement_timeout = {self._timeout_ms}"))
                yield Beside(other, threads)
                other.execute(_sql(hold_generation(self._store.graph, self._store.generation)))
                complete = True
        except psycopg.OperationalError as error:
            if complete or error.sqlstate is None:
                raise StatementBrokeError(statement.id, error) from error
            raise
        self._half_committed = True

    def _arm(self, statement: Statement) -> None:
        """Set the timeout of the next statement. Only a timeout of more than twice the wanted one is set again, because
        a command for every statement would cost more than most statements do.

        The leader has sized a slice of staged rows for the epoch, so it may use what is left of the budget.
        """
        staged = isinstance(statement, InsertStaged)
        left = max(round(self.left_ms), 1)
        wanted = self._share_ms if self._alone else left if staged else min(self._share_ms, left)
        if self._timeout_ms == 0 or self._timeout_ms > 2 * wanted or (staged and self._timeout_ms != wanted):
            self._timeout_ms = wanted
            self._connection.patience = wanted / 1000 + GRACE_SECONDS
            self._connection.execute(_sql(f"set local statement_timeout = {wanted}"))

    def _failed(self, statement: Statement, told: str, state: str) -> None:
        if state == _CANCELED and self._timeout_ms < self._share_ms:
            # It was started late, and had less than its share.
            self.not_reached.append(statement.id)
        elif not self._alone and (
            state.startswith(_CONTENDED) or (state == _CANCELED and self._timeout_ms < self._limits.statement_ms)
        ):
            self._set_aside.append(statement.id)
        elif state == _CANCELED:
            self._refuse(statement, _too_slow(self._limits), state)
        else:
            # A table that was dropped meanwhile is called as its users call it.
            relation = statement.relation
            said = told[:_SAID_CHARACTERS].replace(state_table(relation.id), relation.name)
            self._refuse(statement, said, state or None)

    def _refuse(self, statement: Statement, error: str, state: str | None) -> None:
        result = StatementResult(id=statement.id, affected=0, error=error, sqlstate=state)
        self._results.append((statement.relation.id, result))


def _too_slow(limits: DmlLimits) -> str:
    return (
        f"the statement was canceled after {limits.statement_ms} ms, the limit that the system parameter"
        " dml_statement_timeout_ms sets, because every barrier waits for it; change fewer rows in each statement, load"
        " many rows by a bulk load or INSERT .. SELECT, or raise the parameter"
    )


@contextmanager
def _canceled_on_error(connection: psycopg.Connection) -> Generator[None]:
    """Cancel what another thread runs in the session when the block ends with an error."""
    try:
        yield
    except BaseException:
        connection.cancel_safe(timeout=_CANCEL_SECONDS)
        raise


def command(statement: InsertValues | Update | Delete, epoch: Epoch) -> str:
    """Return the SQL command of a statement. Its result is one row: rows affected, versions ended, versions made at
    keys without a version of this epoch, and rows lost to another row with the same key.
    """
    relation = statement.relation
    match statement:
        case InsertValues(columns=columns, source=source):
            return _insert(relation, columns, source, epoch)
        case Update(assignments=assignments, predicate=predicate):
            return _update(relation, assignments, predicate, epoch)
        case Delete(predicate=predicate):
            given = f"select *, false as _to from ({_alive(relation, predicate)}) ended"
            parts = f"with ended as materialized ({given}), {write(relation, 'select * from ended', epoch)}"
            return f"{parts} select (select count(*) from ended), {ENDED_AND_MADE}, 0"


def _insert(relation: Relation, columns: Sequence[str], source: str, epoch: Epoch) -> str:
    """Return the command of an INSERT. Of several rows with the same key, the last one wins.

    Rows are numbered in the column `_from`, a name that no user column can have.
    """
    given = ", ".join(quoted(name) for name in columns)
    values = ", ".join(_value(column, set(columns)) for column in relation.columns)
    rows = f"select {_vnode(relation, 'brought')} as _vnode, brought.*, true as _to from brought"
    return (
        f"with brought as materialized (select row_number() over () as _from, {values}"
        f" from ({source}) as source({given})), {write(relation, rows, epoch, prefer='g._from desc')}"
        f" select (select count(*) from brought), {ENDED_AND_MADE}, 0"
    )


def _update(relation: Relation, assignments: Sequence[tuple[str, str]], predicate: str | None, epoch: Epoch) -> str:
    """Return the command of an UPDATE. Rows that keep their key get a new version; a row whose key changes leaves no
    row at its old key.
    """
    by_name = dict(assignments)
    name = quoted(relation.name)
    names = ", ".join(quoted(column.name) for column in relation.columns)
    values = ", ".join(
        f"({by_name[column.name]})::{column.type} as {quoted(column.name)}"
        if column.name in by_name
        else f"{name}.{quoted(column.name)}"
        for column in relation.columns
    )
    rows = (
        f"select {_vnode(relation, 'assigned')} as _vnode, {names}, true as _to from assigned"
        f" union all select _vnode, {names}, false from ended"
    )
    return (
        f"with ended as materialized ({_alive(relation, predicate)}),"
        f" assigned as materialized (select {values} from ended as {name}), {write(relation, rows, epoch)}"
        f" select (select count(*) from ended), {ENDED_AND_MADE},"
        " (select count(*) from assigned) - (select count(*) from found where _to)"
    )


def _alive(relation: Relation, predicate: str | None) -> str:
    # The alias is the user's own name for the table, so that the predicate may qualify its columns.
    names = ", ".join(["_vnode", *(quoted(column.name) for column in relation.columns)])
    where = f" and ({predicate})" if predicate is not None else ""
    return f"select {names} from {state_table(relation.id)} as {quoted(relation.name)} where _to = {ALIVE}{where}"


def _vnode(relation: Relation, rows: str) -> str:
    key = [(f"{rows}.{quoted(part.name)}", relation.column(part.name).type) for part in relation.key]
    return vnode_postgres(key, relation.vnode_count)


def _value(column: Column, given: set[str]) -> str:
    value = f"source.{quoted(column.name)}" if column.name in given else left_out(column)
    return f"{value}::{column.type} as {quoted(column.name)}"


def _sql(text: str) -> Any:
    """Cast for psycopg, which wants literal strings. The text has quoted identifiers and checked expressions."""
    return text
