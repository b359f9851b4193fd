"""Store the rate limits of scans and their adaptation to the load."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, and_, case, delete, func, insert, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from service.domain.adaptive import Adaptation
from service.meta_store.documents import among, printable, recordset
from service.meta_store.engine import OnConnection
from service.meta_store.jobs.plans import read_actors
from service.meta_store.schema.core import OPEN, fragment, graph, job, scan_progress
from service.meta_store.schema.limits import adaptive_limit, limit_change
from service.ports.limits import AdaptedScan, Held, Look
from service.protocol.ids import ActorId, Epoch, FragmentId, GraphId, JobId

KEPT: Final = 1_000
"""How many of a scan's newest changes are kept: at least the last half hour at one barrier per second."""


class PostgresLimits(OnConnection):
    """See `service.ports.limits.Limits`."""

    async def put(
        self,
        limits: Mapping[FragmentId, int | None],
        *,
        auto: Collection[FragmentId],
        epoch: Epoch,
        by: str | None = None,
    ) -> None:
        held = await self.hold(limits)
        rows = [{"id": one, "rate_limit": limits[one], "auto": one in auto} for one in held]
        if not rows:
            return
        new = recordset(rows, fragment.c.id, fragment.c.rate_limit, fragment.c.auto)
        changed = update(fragment).where(fragment.c.id == new.c.id, among(fragment.c.id, held))
        values = {"rate_limit": new.c.rate_limit, "auto": new.c.auto, "limit_epoch": epoch, "limit_by": by}
        await self._connection.execute(changed.values(values))
        ended = [one for one, before in held.items() if before.present is not None and one not in auto]
        if ended:
            await self._connection.execute(delete(adaptive_limit).where(among(adaptive_limit.c.fragment, ended)))
        if adapted := {one: limit for one in auto if one in held and (limit := limits[one])}:
            await self._begin(adapted, epoch)

    async def hold(self, fragments: Collection[FragmentId]) -> Mapping[FragmentId, Held]:
        """Lock in order of id, to avoid a deadlock with another transaction that locks several.

        A second statement reads the limits, because the snapshot of the first is older than its wait for the locks.
        """
        if not fragments:
            return {}
        locked = select(fragment.c.id).where(among(fragment.c.id, fragments)).order_by(fragment.c.id)
        await self._connection.execute(locked.with_for_update(key_share=True))
        found = (
            select(
                fragment.c.id, fragment.c.rate_limit, fragment.c.auto, adaptive_limit.c.present, fragment.c.held_limit
            )
            .outerjoin(adaptive_limit, adaptive_limit.c.fragment == fragment.c.id)
            .where(among(fragment.c.id, fragments))
            .order_by(fragment.c.id)
        )
        return {FragmentId(row.id): _held(row) for row in await self._connection.execute(found)}

    async def pause(self, limits: Mapping[FragmentId, int | None]) -> None:
        rows = [{"id": one, "held_limit": _NO_LIMIT if limit is None else limit} for one, limit in limits.items()]
        new = recordset(rows, fragment.c.id, fragment.c.held_limit)
        held = update(fragment).where(fragment.c.id == new.c.id, among(fragment.c.id, limits))
        await self._connection.execute(held.values(held_limit=new.c.held_limit))

    async def unpause(self, fragments: Collection[FragmentId]) -> None:
        held = and_(among(fragment.c.id, fragments), fragment.c.held_limit.is_not(None))
        await self._connection.execute(update(fragment).where(held).values(held_limit=None))

    async def _begin(self, limits: Mapping[FragmentId, int], epoch: Epoch) -> None:
        rows = [{"fragment": one, "present": float(limit), "since": epoch} for one, limit in limits.items()]
        columns = adaptive_limit.c
        new = upsert(adaptive_limit).values(rows)
        # The adaptation continues where the new limit is its own value, rounded half to even as Python rounds it.
        goes_on = func.round(columns.present) == new.excluded.present
        begun: dict[str, Any] = {
            "present": case((goes_on, columns.present), else_=new.excluded.present),
            "threshold": case((goes_on, columns.threshold)),
            "falling": and_(goes_on, columns.falling),
            "quiet": case((goes_on, columns.quiet), else_=0),
            "since": new.excluded.since,
        }
        await self._connection.execute(new.on_conflict_do_update(index_elements=["fragment"], set_=begun))
        values = recordset(
            [{"fragment": one, "after": limit} for one, limit in limits.items()],
            limit_change.c.fragment,
            limit_change.c.after,
        )
        effective = update(limit_change).where(
            limit_change.c.fragment == values.c.fragment,
            limit_change.c.after == values.c.after,
            limit_change.c.epoch.is_(None),
            among(limit_change.c.fragment, limits),
        )
        await self._connection.execute(effective.values(epoch=epoch))


class Adaptations(OnConnection):
    """The adaptive limits of scans. The leader adapts them, from the state stored here."""

    async def graphs(self) -> Sequence[GraphId]:
        """Return the graphs with scans that have an adaptive limit."""
        found = select(job.c.graph).join(fragment, fragment.c.job == job.c.id).where(fragment.c.auto)
        rows = await self._connection.execute(found.distinct().order_by(job.c.graph))
        return [GraphId(one) for one in rows.scalars()]

    async def adapted(self, graph: GraphId, *, hold: bool = False) -> Sequence[AdaptedScan]:
        """Return the scans that read now under an adaptive limit.

        With `hold` their rows are locked until the transaction ends, and rows that another transaction has locked are
        skipped.
        """
        found = _ADAPTED.where(job.c.graph == graph)
        if hold:
            free = select(fragment.c.id).where(fragment.c.auto).with_for_update(key_share=True, skip_locked=True)
            held = (await self._connection.execute(free)).scalars()
            found = found.where(among(fragment.c.id, held))
        rows = (await self._connection.execute(found)).all()
        actors = await read_actors(self._connection, [row.id for row in rows]) if rows else {}
        return [_adapted(row, actors[row.id]) for row in rows]

    async def record(self, looks: Sequence[Look], *, now: datetime) -> None:
        """Store the state of these adaptations and the requested changes. Only the newest changes are kept."""
        if not looks:
            return
        new = upsert(adaptive_limit).values([_state(look, now) for look in looks])
        replaced = {column.name: new.excluded[column.name] for column in adaptive_limit.c if column.name != "fragment"}
        await self._connection.execute(new.on_conflict_do_update(index_elements=["fragment"], set_=replaced))
        changes = [_change(look, now) for look in looks if look.asked is not None]
        if changes:
            await self._connection.execute(insert(limit_change).values(changes))
            for change in changes:
                await self._trim(change["fragment"])

    async def _trim(self, one: FragmentId) -> None:
        mine = select(limit_change.c.id).where(limit_change.c.fragment == one)
        oldest_kept = mine.order_by(limit_change.c.id.desc()).offset(KEPT - 1).limit(1).scalar_subquery()
        old = and_(limit_change.c.fragment == one, limit_change.c.id < oldest_kept)
        await self._connection.execute(delete(limit_change).where(old))


_ADAPTED: Final = (
    select(
        fragment.c.id,
        fragment.c.job,
        fragment.c.rate_limit,
        scan_progress.c.at,
        adaptive_limit.c.present,
        adaptive_limit.c.threshold,
        adaptive_limit.c.falling,
        adaptive_limit.c.quiet,
        adaptive_limit.c.since,
        adaptive_limit.c.seen,
        adaptive_limit.c.rows,
        adaptive_limit.c.read_at,
    )
    .join(scan_progress, scan_progress.c.fragment == fragment.c.id)
    .join(job, job.c.id == fragment.c.job)
    .join(graph, graph.c.id == job.c.graph)
    .outerjoin(adaptive_limit, adaptive_limit.c.fragment == fragment.c.id)
    .where(
        fragment.c.auto,
        fragment.c.rate_limit > 0,
        OPEN,
        scan_progress.c.at.is_not(None),
        fragment.c.waiting.is_(False),
        fragment.c.broken.is_(None),
        # A created job with an unfinished scan is a followed table.
        job.c.state.in_((literal_column("'Creating'"), literal_column("'Created'"))),
        graph.c.status == literal_column("'RUNNING'"),
        graph.c.paused.is_(False),
    )
    .order_by(fragment.c.id)
)


_NO_LIMIT: Final = -1
"""Stands for "unlimited" in `held_limit`, where NULL means that the job is not paused."""


def _held(row: Row[*tuple[Any, ...]]) -> Held:
    at = row.held_limit
    resumes_at = None if at is None or at == _NO_LIMIT else at
    return Held(row.rate_limit, row.auto, row.present, paused=at is not None, resumes_at=resumes_at)


def _adapted(row: Row[*tuple[Any, ...]], actors: Sequence[Row[*tuple[Any, ...]]]) -> AdaptedScan:
    return AdaptedScan(
        fragment=FragmentId(row.id),
        job=JobId(row.job),
        rate_limit=row.rate_limit,
        adaptation=None
        if row.present is None
        else Adaptation(row.present, row.threshold, falling=row.falling, quiet=row.quiet),
        since=Epoch(row.since or 0),
        seen=Epoch(row.seen or 0),
        rows={ActorId(int(one)): rows for one, rows in (row.rows or {}).items()},
        rows_at=row.read_at,
        read={ActorId(one.id): one.rows for one in actors},
        read_at=row.at,
    )


def _state(look: Look, now: datetime) -> dict[str, Any]:
    return {
        "fragment": look.scan.fragment,
        "present": look.after.present,
        "threshold": look.after.threshold,
        "falling": look.after.falling,
        "quiet": look.after.quiet,
        "since": look.scan.since,
        "seen": look.seen,
        "rows": {str(one): rows for one, rows in look.scan.read.items()},
        "looked_at": now,
        "read_at": look.scan.read_at,
        "move": look.move,
        "signal": look.signal,
        "reason": printable(look.reason),
        "readings": [
            {"signal": one.signal, "healthy": one.healthy, "text": printable(one.text)} for one in look.readings
        ],
    }


def _change(look: Look, now: datetime) -> dict[str, Any]:
    return {
        "fragment": look.scan.fragment,
        "at": now,
        "before": look.scan.rate_limit,
        "after": look.asked,
        "signal": look.signal,
        "reason": printable(look.reason),
    }
