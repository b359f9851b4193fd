"""Store accepted DML statements and their results.

A staged statement is stored as a whole, and barriers carry slices of it. The next slice begins at `applied_rows`: the
end of the last slice whose epoch has committed. So a recovery repeats only the slice that was in flight.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row, Select, and_, case, delete, exists, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from service.domain.backlog import QueuedStatements
from service.domain.dml import SINGLY
from service.domain.unstoppable import Unstoppable
from service.meta_store.documents import among, printable, recordset, stored_text, text_of
from service.meta_store.engine import OnConnection
from service.meta_store.relations import read_relations
from service.meta_store.schema.core import KEY_UNANSWERED, STATEMENT_ID, WAITING, idempotency_key, relation_column
from service.meta_store.schema.core import statement as statements
from service.meta_store.schema.limits import unstoppable_statement
from service.ports.records import StoredStatement
from service.ports.statements import APPLIED_PARTLY, StagedStatement
from service.protocol.dml import NOTHING_UNFINISHED, STATEMENT, Statement, StatementResult, Unfinished
from service.protocol.ids import Epoch, StatementId
from service.protocol.relation import Relation

KEPT_FOR: Final = timedelta(minutes=10)
"""How long a finished statement stays readable: far longer than a client waits for its result."""


class PostgresStatements(OnConnection):
    """See `service.ports.meta_store.Statements`."""

    async def reserve(self) -> StatementId:
        return StatementId((await self._connection.execute(select(STATEMENT_ID.next_value()))).scalar_one())

    async def add(
        self, statement: Statement, *, now: datetime, staged_rows: int | None = None, caller: str | None = None
    ) -> int:
        text = statement.model_dump_json()
        size = len(text.encode())
        new = insert(statements).values(
            id=statement.id,
            body=stored_text(text),
            accepted_at=now,
            staged_rows=staged_rows,
            staging=staged_rows is not None,
            relation=statement.relation.id,
            bytes=size,
            caller=caller,
        )
        await self._connection.execute(new)
        return size

    async def outcomes(
        self, wanted: Collection[StatementId]
    ) -> Mapping[StatementId, tuple[Epoch, StatementResult] | None]:
        of = statements.c
        columns = (of.id, of.epoch, of.affected, of.error, of.sqlstate, of.finished_at)
        rows = await self._connection.execute(select(*columns).where(among(of.id, wanted)))
        return {
            StatementId(row.id): None if row.finished_at is None else (Epoch(row.epoch), _result(row)) for row in rows
        }

    async def waiting(
        self, *, limit: int, bytes_max: int | None = None, singly: bool = False
    ) -> Sequence[StoredStatement]:
        """The limit on bytes is applied to stored lengths, so that only the returned texts are read."""
        ranked = _ranked(singly=singly).subquery()
        order = (ranked.c.turn, ranked.c.id)
        before = func.sum(ranked.c.bytes).over(order_by=order) - ranked.c.bytes
        summed = select(ranked.c.id, ranked.c.turn, before.label("before")).order_by(*order).limit(limit).subquery()
        taken = _STATEMENTS.join(summed, summed.c.id == statements.c.id)
        if bytes_max is not None:
            taken = taken.where(summed.c.before < bytes_max)
        rows = (await self._connection.execute(taken.order_by(summed.c.turn, summed.c.id))).all()
        found = [_statement(row) for row in rows]
        # A column may have been added since a statement was accepted.
        altered = {
            one.statement.relation.id
            for one, row in zip(found, rows, strict=True)
            if row.width > len(one.statement.relation.columns)
        }
        present, _ = await read_relations(self._connection, altered, ()) if altered else ({}, {})
        return [_of_present(one, present) for one in found]

    async def backlog(self) -> Mapping[str, QueuedStatements]:
        of = statements.c
        counted = select(of.caller, func.count(), func.sum(of.bytes)).where(WAITING).group_by(of.caller)
        rows = await self._connection.execute(counted)
        return {caller or "": QueuedStatements(count, int(size)) for caller, count, size in rows}

    async def finish(
        self,
        results: Sequence[StatementResult],
        *,
        epoch: Epoch,
        now: datetime,
        unfinished: Unfinished = NOTHING_UNFINISHED,
    ) -> None:
        """Repeatable: a result for a statement that has already finished changes nothing."""
        if left := [*unfinished.not_reached, *unfinished.set_aside]:
            aside = among(statements.c.id, unfinished.set_aside)
            back = update(statements).where(among(statements.c.id, left), statements.c.carried_by == epoch)
            tries = case((aside, func.greatest(statements.c.tries, SINGLY)), else_=statements.c.tries)
            await self._connection.execute(back.values(carried_by=None, carried_to=None, tries=tries))
        if not results:
            return
        await self._connection.execute(_finish(results, epoch, now))
        old = and_(statements.c.finished_at < now - KEPT_FOR, statements.c.finished_at.is_not(None))
        # Keep a statement whose call has no stored response: its process died, and a repeated call needs the result.
        awaited = exists().where(idempotency_key.c.statement == statements.c.id, KEY_UNANSWERED)
        await self._connection.execute(delete(statements).where(old, ~statements.c.staging, ~awaited))

    async def blame(self, epoch: Epoch, culprit: StatementId | None) -> Sequence[tuple[StatementId, int]]:
        more = statements.c.tries + 1
        tries = case((statements.c.id == culprit, func.greatest(more, SINGLY)), else_=more)
        carried = update(statements).where(statements.c.carried_by == epoch).values(tries=tries)
        rows = await self._connection.execute(carried.returning(statements.c.id, statements.c.tries))
        return sorted((StatementId(row.id), int(row.tries)) for row in rows)

    async def unstoppable(self, *, since: datetime) -> Mapping[str, Unstoppable]:
        of = unstoppable_statement.c
        rows = await self._connection.execute(select(of.caller, of.statement, of.at, of.number).where(of.at > since))
        return {caller: Unstoppable(StatementId(one), at, number) for caller, one, at, number in rows}

    async def given_up(self, statement: StatementId, *, now: datetime) -> Sequence[StatementId]:
        its = select(statements.c.caller).where(statements.c.id == statement, statements.c.caller.is_not(None))
        caller = (await self._connection.execute(its)).scalar()
        if caller is None:
            return ()
        of = unstoppable_statement.c
        held = select(of.statement, of.at, of.number).where(of.caller == caller)
        row = (await self._connection.execute(held)).first()
        last = None if row is None else Unstoppable(StatementId(row.statement), row.at, row.number)
        known = Unstoppable.after(last, statement, now)
        values = {"statement": known.statement, "at": known.at, "number": known.number}
        new = upsert(unstoppable_statement).values(caller=caller, **values)
        await self._connection.execute(new.on_conflict_do_update(index_elements=["caller"], set_=values))
        alike = and_(statements.c.caller == caller, statements.c.staged_rows.is_(None), statements.c.id != statement)
        unfinished = select(statements.c.id).where(alike, statements.c.finished_at.is_(None))
        return [StatementId(one) for one in (await self._connection.execute(unfinished)).scalars()]


class PostgresStagingTables(OnConnection):
    """See `service.ports.statements.StagingTables`."""

    async def unused(self) -> Sequence[StatementId]:
        finished = and_(statements.c.staging, statements.c.finished_at.is_not(None))
        rows = await self._connection.execute(select(statements.c.id).where(finished).order_by(statements.c.id))
        return [StatementId(one) for one in rows.scalars()]

    async def dropped(self, statement: StatementId) -> None:
        await self._connection.execute(update(statements).where(statements.c.id == statement).values(staging=False))

    async def publishing(self) -> Sequence[StagedStatement]:
        of = statements.c
        found = (
            select(of.id, of.body["relation"]["name"].astext.label("name"), of.applied_rows, of.staged_rows)
            .where(of.staging, of.staged_rows.is_not(None), of.finished_at.is_(None))
            .order_by(of.id)
        )
        return [
            StagedStatement(StatementId(row.id), row.name, row.applied_rows, row.staged_rows)
            for row in await self._connection.execute(found)
        ]


def _ranked(*, singly: bool) -> Select[*tuple[Any, ...]]:
    """Return waiting statements with their turn among those of their caller, whose tables take turns, too."""
    of = statements.c
    which = of.tries >= SINGLY if singly else of.tries < SINGLY
    place = func.row_number().over(partition_by=(of.caller, of.relation), order_by=of.id)
    placed = select(of.id, of.bytes, of.caller, place.label("place")).where(WAITING, which).subquery()
    turn = func.row_number().over(partition_by=placed.c.caller, order_by=(placed.c.place, placed.c.id))
    return select(placed.c.id, placed.c.bytes, turn.label("turn"))


def _finish(results: Sequence[StatementResult], epoch: Epoch, now: datetime) -> Any:
    """Return one update for all results. Columns on the right-hand side have their values from before the update."""
    rows = [
        {
            "id": one.id,
            "affected": one.affected,
            "error": None if one.error is None else printable(one.error),
            "sqlstate": one.sqlstate,
        }
        for one in results
    ]
    new = recordset(rows, statements.c.id, statements.c.affected, statements.c.error, statements.c.sqlstate)
    applied = func.coalesce(statements.c.carried_to, statements.c.applied_rows)
    last = or_(statements.c.staged_rows.is_(None), new.c.error.is_not(None), applied >= statements.c.staged_rows)
    late = and_(new.c.error.is_not(None), statements.c.applied_rows > 0)
    return (
        update(statements)
        .where(statements.c.id == new.c.id, among(statements.c.id, (one.id for one in results)))
        .where(statements.c.finished_at.is_(None))
        .values(
            applied_rows=case((new.c.error.is_(None), applied), else_=statements.c.applied_rows),
            affected=case((new.c.error.is_(None), statements.c.affected + new.c.affected), else_=0),
            error=case((late, func.concat(new.c.error, APPLIED_PARTLY, statements.c.applied_rows)), else_=new.c.error),
            sqlstate=new.c.sqlstate,
            carried_by=None,
            carried_to=None,
            tries=0,
            epoch=epoch,
            finished_at=case((last, now)),
            # A text is read until its statement ends, and the texts of ten minutes may be gigabytes.
            body=case((last, func.jsonb_build_object()), else_=statements.c.body),
        )
    )


_STATEMENTS: Final[Select[*tuple[Any, ...]]] = select(
    statements.c.id,
    text_of(statements.c.body).label("body"),
    statements.c.staged_rows,
    statements.c.applied_rows,
    statements.c.caller,
    select(func.count())
    .where(relation_column.c.relation == statements.c.relation)
    .correlate(statements)
    .scalar_subquery()
    .label("width"),
)


def _of_present(one: StoredStatement, present: Mapping[int, Relation]) -> StoredStatement:
    relation = present.get(one.statement.relation.id)
    if relation is None:
        return one
    return replace(one, statement=one.statement.model_copy(update={"relation": relation}))


def _statement(row: Row[*tuple[Any, ...]]) -> StoredStatement:
    return StoredStatement(
        id=StatementId(row.id),
        statement=STATEMENT.validate_json(row.body),
        staged_rows=row.staged_rows,
        applied_rows=row.applied_rows,
        caller=row.caller or "",
    )


def _result(row: Row[*tuple[Any, ...]]) -> StatementResult:
    return StatementResult(id=StatementId(row.id), affected=row.affected, error=row.error, sqlstate=row.sqlstate)
