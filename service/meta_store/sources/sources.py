"""Store sources and users' secrets. Next: `service.meta_store.sources.followed_tables`."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, Text, cast, delete, exists, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.domain.errors import Conflict, NotFound
from service.domain.source import Retention
from service.meta_store.documents import cut, document
from service.meta_store.engine import OnConnection
from service.meta_store.references import add_relation
from service.meta_store.schema.core import TAKEN, fragment, secret, view_reference
from service.meta_store.schema.core import relation as relations
from service.meta_store.schema.sources import lake_source, source_cleanup
from service.meta_store.schema.sources import source as sources
from service.ports.source_records import Leftover, NewSource, Source, Standing
from service.protocol.cdc import Lsn
from service.protocol.ids import SourceId
from service.protocol.relation import RelationKind

_USERS: Final = "secret "
"""The prefix of users' secrets among the names of all secrets."""


class Sources(OnConnection):
    """The sources of the catalog."""

    async def add(self, new: NewSource, *, now: datetime, abandoned_at: datetime) -> Source:
        # A source stores no rows, so its number of vnodes has no meaning.
        """Store a source that is not created yet, and clean-ups of its objects that are due at `abandoned_at`.

        Raises Conflict if the name is taken.
        """
        relation = await add_relation(
            self._connection, new.name, RelationKind.SOURCE, definition=new.definition, vnode_count=1
        )
        one, unique = SourceId(relation), await self._unique_name()
        row = insert(sources).values(
            relation=one,
            options=document(new.options),
            secret=await self._keep_password(one, new),
            publication=new.publication or unique,
            slot=new.slot or unique,
            owns_publication=new.owns_publication,
        )
        await self._connection.execute(row)
        await self._queue(one, now=now, due=abandoned_at)
        added = await self.get(one)
        assert added is not None
        return added

    async def made(self, source: SourceId, offset: Lsn) -> None:
        """Record that slot and publication exist, and delete their clean-ups."""
        await self._connection.execute(update(sources).where(sources.c.relation == source).values(offset=offset))
        await self._connection.execute(update(relations).where(relations.c.id == source).values(shown=True))
        await self._connection.execute(delete(source_cleanup).where(source_cleanup.c.source == source))

    async def named(self, name: str) -> Source | None:
        return next(iter(await self._read(relations.c.name == name, TAKEN)), None)

    async def get(self, source: SourceId) -> Source | None:
        """Return a source, even a dropped one with a pending clean-up."""
        return next(iter(await self._read(relations.c.id == source)), None)

    async def all(self) -> Sequence[Source]:
        """Return the sources that are not dropped, oldest first."""
        return await self._read(TAKEN, definition=cut(relations.c.definition))

    async def password(self, source: SourceId) -> str:
        value = select(secret.c.value).join(sources, sources.c.secret == secret.c.name)
        return (await self._connection.execute(value.where(sources.c.relation == source))).scalar_one()

    async def remove(self, source: SourceId, *, now: datetime, keeping: Collection[Leftover] = ()) -> None:
        """Free the name and queue the clean-up of the external objects, except for `keeping` and foreign ones."""
        freed = update(relations).where(relations.c.id == source, TAKEN).values(dropped=True, shown=False)
        await self._connection.execute(freed)
        await self._queue(source, now=now, due=now)
        for what in keeping:
            kept = delete(source_cleanup).where(source_cleanup.c.source == source, source_cleanup.c.what == what)
            await self._connection.execute(kept)
        await forget_source(self._connection, source)

    async def _queue(self, source: SourceId, *, now: datetime, due: datetime) -> None:
        owns = select(sources.c.owns_publication).where(sources.c.relation == source)
        made = [Leftover.SLOT]
        if (await self._connection.execute(owns)).scalar_one():
            made.append(Leftover.PUBLICATION)
        new = insert(source_cleanup).values(
            [{"source": source, "what": what, "asked_at": now, "due": due} for what in made]
        )
        sooner = {"due": func.least(source_cleanup.c.due, new.excluded.due)}
        await self._connection.execute(new.on_conflict_do_update(constraint="source_cleanup_once", set_=sooner))

    async def _unique_name(self) -> str:
        """Return a name that no other source has, even one of another service that follows the same database."""
        made = (await self._connection.execute(select(cast(func.gen_random_uuid(), Text)))).scalar_one()
        return f"tidefill_{made.replace('-', '')[:16]}"

    async def _keep_password(self, one: SourceId, new: NewSource) -> str:
        """Return the name of the source's secret, after locking a user's one. Raises NotFound."""
        if new.password.name is None:
            await self._connection.execute(insert(secret).values(name=_own(one), value=new.password.value))
            return _own(one)
        return await hold_secret(self._connection, new.password.name)

    async def _read(
        self, *conditions: ColumnElement[bool], definition: ColumnElement[str] = relations.c.definition
    ) -> list[Source]:
        found = _SOURCES.add_columns(definition).where(*conditions).order_by(relations.c.id)
        return [_source(row) for row in await self._connection.execute(found)]


class Secrets(OnConnection):
    """Users' secrets by name. Only `value` returns a value."""

    async def add(self, name: str, value: str) -> None:
        """Raises Conflict if the name is taken."""
        new = insert(secret).values(name=f"{_USERS}{name}", value=value).on_conflict_do_nothing()
        if (await self._connection.execute(new.returning(secret.c.name))).first() is None:
            raise Conflict(f'secret with name "{name}" exists')

    async def change(self, name: str, value: str) -> None:
        """Raises NotFound."""
        changed = update(secret).where(secret.c.name == f"{_USERS}{name}").values(value=value)
        if (await self._connection.execute(changed.returning(secret.c.name))).first() is None:
            raise NotFound(f'secret "{name}" does not exist', kind="secret")

    async def value(self, name: str) -> str | None:
        found = select(secret.c.value).where(secret.c.name == f"{_USERS}{name}")
        return (await self._connection.execute(found)).scalar()

    async def names(self) -> Sequence[str]:
        found = select(secret.c.name).where(secret.c.name.startswith(_USERS)).order_by(secret.c.name)
        return [name.removeprefix(_USERS) for name in (await self._connection.execute(found)).scalars()]

    async def remove(self, name: str) -> bool:
        """Return whether the secret existed. Raises Conflict while a source or a sink uses it."""
        kept = f"{_USERS}{name}"
        # A source or a sink that is being added locks its secret. It commits first and is seen here, or raises later.
        held = select(secret.c.name).where(secret.c.name == kept).with_for_update()
        if (await self._connection.execute(held)).first() is None:
            return False
        using = select(relations.c.name).join(sources, sources.c.relation == relations.c.id)
        names = (await self._connection.execute(using.where(sources.c.secret == kept))).scalars().all()
        if names:
            raise Conflict(f'cannot drop secret "{name}": it is the password of {", ".join(sorted(names))}')
        sinks = select(relations.c.name, fragment.c.connector).join(fragment, fragment.c.job == relations.c.id)
        lakes = select(relations.c.name, lake_source.c.connector).join(
            lake_source, lake_source.c.relation == relations.c.id
        )
        found = [
            *await self._connection.execute(sinks.where(fragment.c.connector.is_not(None))),
            *await self._connection.execute(lakes),
        ]
        if used := sorted({row.name for row in found if name in row.connector.get("secrets", {}).values()}):
            raise Conflict(f'cannot drop secret "{name}": it is used by {", ".join(used)}')
        await self._connection.execute(delete(secret).where(secret.c.name == kept))
        return True


async def hold_secret(connection: AsyncConnection, name: str) -> str:
    """Lock a user's secret until the transaction ends, and return its name among all. Raises NotFound."""
    kept = f"{_USERS}{name}"
    held = select(secret.c.name).where(secret.c.name == kept).with_for_update(read=True)
    if (await connection.execute(held)).first() is None:
        raise NotFound(f'secret "{name}" does not exist', kind="secret")
    return kept


async def forget_source(connection: AsyncConnection, one: SourceId) -> None:
    """Delete a dropped source and its own password, unless it has pending clean-ups."""
    gone = select(relations.c.id).where(relations.c.id == one, relations.c.dropped)
    left = exists().where(source_cleanup.c.source == one)
    forgotten = delete(sources).where(sources.c.relation.in_(gone), ~left).returning(sources.c.secret)
    kept = (await connection.execute(forgotten)).scalar()
    if kept == _own(one):
        await connection.execute(delete(secret).where(secret.c.name == kept))
    if kept is not None:
        await connection.execute(delete(view_reference).where(view_reference.c.relation == one))


def _own(one: SourceId) -> str:
    return f"source {one}"


_SOURCES: Final[Select[*tuple[Any, ...]]] = select(
    relations.c.id,
    relations.c.name,
    relations.c.shown,
    relations.c.dropped,
    sources,
    func.jsonb_array_length(sources.c.undecided).label("undecided_count"),
).join(sources, sources.c.relation == relations.c.id)


def _source(row: Row[*tuple[Any, ...]]) -> Source:
    named = row.secret.startswith(_USERS)
    return Source(
        id=SourceId(row.id),
        name=row.name,
        definition=row.definition,
        options=row.options,
        publication=row.publication,
        slot=row.slot,
        owns_publication=row.owns_publication,
        shown=row.shown,
        dropped=row.dropped,
        secret=row.secret.removeprefix(_USERS) if named else None,
        standing=Standing(
            offset=row.offset,
            undecided=row.undecided_count,
            waiting=row.waiting,
            lag_bytes=row.lag_bytes,
            retained_bytes=row.retained_bytes,
            commit_lag_ms=row.commit_lag_ms,
            changes=row.changes,
            reported_at=row.reported_at,
            retention=None if row.retention is None else Retention(row.retention),
        ),
    )
