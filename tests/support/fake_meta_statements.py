"""Statements and idempotency keys of the meta store in memory; part of `fake_meta_store`."""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from service.domain.backlog import NONE, QueuedStatements
from service.domain.dml import SINGLY
from service.domain.errors import Conflict
from service.domain.unstoppable import Unstoppable
from service.ports.records import Claim, Json, StoredStatement
from service.ports.statements import APPLIED_PARTLY, StagedStatement
from service.protocol.dml import NOTHING_UNFINISHED, Statement, StatementResult, Unfinished
from service.protocol.ids import Epoch, StatementId
from tests.support.fake_meta_tables import KeyRow, StatementRow, Tables, printable

STATEMENTS_KEPT_FOR = timedelta(minutes=10)
KEYS_KEPT_FOR = timedelta(hours=24)


def _bytes(statement: Statement) -> int:
    return len(statement.model_dump_json().encode())


def _numbered(rows: Sequence[tuple[Hashable, StatementRow]]) -> Sequence[tuple[int, StatementRow]]:
    """Number the rows of each group, and return them in the order of these numbers and of their ids."""
    seen: Counter[Hashable] = Counter()
    numbered: list[tuple[int, StatementRow]] = []
    for group, row in rows:
        seen[group] += 1
        numbered.append((seen[group], row))
    return sorted(numbered, key=lambda one: (one[0], one[1].stored.id))


@dataclass(frozen=True, slots=True)
class FakeStatements:
    tables: Tables

    async def reserve(self) -> StatementId:
        return StatementId(next(self.tables.ids))

    async def add(
        self, statement: Statement, *, now: datetime, staged_rows: int | None = None, caller: str | None = None
    ) -> int:
        assert statement.id not in self.tables.statements, "a statement's id is its own"
        del now
        stored = StoredStatement(statement.id, statement, staged_rows, caller=caller or "")
        self.tables.statements.put(statement.id, StatementRow(stored, staging=staged_rows is not None, caller=caller))
        return _bytes(statement)

    async def outcomes(
        self, wanted: Collection[StatementId]
    ) -> Mapping[StatementId, tuple[Epoch, StatementResult] | None]:
        rows = {one: self.tables.statements.get(one) or self.tables.finished_statements.get(one) for one in wanted}
        return {one: row.outcome for one, row in rows.items() if row is not None}

    async def waiting(
        self, *, limit: int, bytes_max: int | None = None, singly: bool = False
    ) -> Sequence[StoredStatement]:
        found = [row for _, row in sorted(self.tables.statements.items()) if row.waits(singly=singly)]
        places = _numbered([((row.caller, row.stored.statement.relation.id), row) for row in found])
        turns = _numbered([(row.caller, row) for _, row in places])
        taken: list[StoredStatement] = []
        size = 0
        for one in [row.stored for _, row in turns][:limit]:
            if bytes_max is not None and size >= bytes_max:
                break
            taken.append(self._of_present(one))
            size += _bytes(one.statement)
        return taken

    def _of_present(self, one: StoredStatement) -> StoredStatement:
        row = self.tables.relations.get(one.statement.relation.id)
        if row is None or row.dropped:
            return one
        return replace(one, statement=one.statement.model_copy(update={"relation": row.relation}))

    async def backlog(self) -> Mapping[str, QueuedStatements]:
        found: dict[str, QueuedStatements] = {}
        for row in self.tables.statements.values():
            if row.carried_by is None:
                caller = row.caller or ""
                found[caller] = found.get(caller, NONE) + QueuedStatements(1, _bytes(row.stored.statement))
        return found

    async def blame(self, epoch: Epoch, culprit: StatementId | None) -> Sequence[tuple[StatementId, int]]:
        carried = sorted(one for one, row in self.tables.statements.items() if row.carried_by == epoch)
        blamed: list[tuple[StatementId, int]] = []
        for one in carried:
            row = self.tables.statements[one]
            tries = max(row.tries + 1, SINGLY if one == culprit else 0)
            self.tables.statements.put(one, replace(row, tries=tries))
            blamed.append((one, tries))
        return blamed

    async def unstoppable(self, *, since: datetime) -> Mapping[str, Unstoppable]:
        return {caller: one for caller, one in self.tables.unstoppable.items() if one.at > since}

    async def given_up(self, statement: StatementId, *, now: datetime) -> Sequence[StatementId]:
        row = self.tables.statements.get(statement) or self.tables.finished_statements.get(statement)
        if row is None or row.caller is None:
            return ()
        last = self.tables.unstoppable.get(row.caller)
        self.tables.unstoppable.put(row.caller, Unstoppable.after(last, statement, now))
        mine = [one for one, other in self.tables.statements.items() if other.caller == row.caller]
        return [one for one in mine if one != statement and self.tables.statements[one].stored.staged_rows is None]

    async def finish(
        self,
        results: Sequence[StatementResult],
        *,
        epoch: Epoch,
        now: datetime,
        unfinished: Unfinished = NOTHING_UNFINISHED,
    ) -> None:
        for one in (*unfinished.not_reached, *unfinished.set_aside):
            row = self.tables.statements.get(one)
            if row is not None and row.carried_by == epoch:
                tries = max(row.tries, SINGLY if one in unfinished.set_aside else 0)
                self.tables.statements.put(one, replace(row, carried_by=None, carried_to=None, tries=tries))
        if not results:
            return
        for result in results:
            row = self.tables.statements.get(result.id)
            if row is not None:
                self._finish(row, result, epoch, now)
        awaited = {row.claim.statement for row in self.tables.keys.values() if row.response is None}
        for one, row in list(self.tables.finished_statements.items()):
            assert row.finished_at is not None
            if row.finished_at < now - STATEMENTS_KEPT_FOR and not row.staging and one not in awaited:
                self.tables.finished_statements.take(one)

    def _finish(self, row: StatementRow, result: StatementResult, epoch: Epoch, now: datetime) -> None:
        stored, failed = row.stored, result.error is not None
        applied = stored.applied_rows if row.carried_to is None else row.carried_to
        affected = 0 if failed else row.affected + result.affected
        kept = replace(stored, applied_rows=stored.applied_rows if failed else applied)
        row = replace(row, stored=kept, affected=affected, carried_by=None, carried_to=None, tries=0)
        if not (stored.staged_rows is None or failed or applied >= stored.staged_rows):
            self.tables.statements.put(stored.id, row)
            return
        error = None if result.error is None else printable(result.error)
        if error is not None and stored.applied_rows > 0:
            error = f"{error}{APPLIED_PARTLY}{stored.applied_rows}"
        told = StatementResult(id=stored.id, affected=affected, error=error, sqlstate=result.sqlstate)
        self.tables.statements.take(stored.id)
        ended = replace(row, outcome=(epoch, told), finished_at=now)
        self.tables.finished_statements.put(stored.id, ended)


@dataclass(frozen=True, slots=True)
class FakeStagingTables:
    tables: Tables

    async def unused(self) -> Sequence[StatementId]:
        return sorted(one for one, row in self.tables.finished_statements.items() if row.staging)

    async def dropped(self, statement: StatementId) -> None:
        row = self.tables.finished_statements.get(statement)
        if row is not None:
            self.tables.finished_statements.put(statement, replace(row, staging=False))

    async def publishing(self) -> Sequence[StagedStatement]:
        return [
            StagedStatement(one, row.stored.statement.relation.name, row.stored.applied_rows, row.stored.staged_rows)
            for one, row in sorted(self.tables.statements.items())
            if row.stored.staged_rows is not None
        ]


@dataclass(frozen=True, slots=True)
class FakeKeys:
    tables: Tables

    async def claim(self, key: str, fingerprint: str, *, now: datetime, hold: timedelta) -> Claim | Json:
        row = self.tables.keys.get(key)
        if row is not None and row.claimed_at < now - KEYS_KEPT_FOR:
            row = None
        if row is not None and row.fingerprint != fingerprint:
            raise Conflict("this idempotency key was used with another request")
        if row is not None and row.response is not None:
            return row.response
        if row is not None and row.held_until > now:
            raise Conflict("the first call with this idempotency key has not been answered yet")
        claim = Claim(key, next(self.tables.ids), None if row is None else row.claim.statement)
        claimed_at = now if row is None else row.claimed_at
        self.tables.keys.put(key, KeyRow(claim, fingerprint, claimed_at, now + hold))
        return claim

    async def renew(self, claims: Collection[Claim], *, now: datetime, hold: timedelta) -> None:
        for claim in claims:
            if row := self._held(claim):
                self.tables.keys.put(claim.key, replace(row, held_until=now + hold))

    async def accepted(self, claim: Claim, statement: StatementId) -> None:
        row = self._held(claim)
        if row is None:
            raise Conflict("a repetition of this call has taken its idempotency key over")
        self.tables.keys.put(claim.key, replace(row, claim=replace(row.claim, statement=statement)))

    async def store(self, claim: Claim, response: Json) -> None:
        if row := self._held(claim):
            self.tables.keys.put(claim.key, replace(row, response=response))

    async def release(self, claim: Claim, *, now: datetime) -> None:
        row = self._held(claim)
        if row is None:
            return
        statement = row.claim.statement
        finished = None if statement is None else self.tables.finished_statements.get(statement)
        failed = (
            finished is not None
            and finished.outcome is not None
            and finished.outcome[1].error is not None
            and finished.stored.applied_rows == 0
        )
        if statement is None or failed:
            self.tables.keys.take(claim.key)
        else:
            self.tables.keys.put(claim.key, replace(row, held_until=now))

    def _held(self, claim: Claim) -> KeyRow | None:
        row = self.tables.keys.get(claim.key)
        return row if row is not None and row.claim.number == claim.number and row.response is None else None
