"""System parameters that a user has set, and secrets, which no catalog shows: of parameters, and generated ones."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from service.meta_store.engine import OnConnection, translated
from service.meta_store.schema.core import secret, system_parameter

_ALL: Final = select(system_parameter.c.name, system_parameter.c.value)


class PostgresParameters(OnConnection):
    """See `service.ports.meta_store.Parameters`."""

    async def all(self) -> Mapping[str, str]:
        rows = await self._connection.execute(_ALL)
        return dict(rows.all())

    async def set(self, name: str, text: str) -> None:
        new = insert(system_parameter).values(name=name, value=text)
        await self._connection.execute(new.on_conflict_do_update(index_elements=["name"], set_={"value": text}))

    async def secret(self, name: str) -> str:
        found = await self._connection.execute(select(secret.c.value).where(secret.c.name == _kept(name)))
        return found.scalar() or ""

    async def set_secret(self, name: str, text: str) -> None:
        new = insert(secret).values(name=_kept(name), value=text)
        await self._connection.execute(new.on_conflict_do_update(index_elements=["name"], set_={"value": text}))


def _kept(name: str) -> str:
    return f"parameter {name}"


async def remembered(engine: AsyncEngine, name: str, *, proposed: str) -> str:
    """Return the generated secret called `name`. Store `proposed` where there is none yet. Raises Unavailable."""
    with translated():
        async with engine.begin() as connection:
            await connection.execute(insert(secret).values(name=name, value=proposed).on_conflict_do_nothing())
            return (await connection.execute(select(secret.c.value).where(secret.c.name == name))).scalar_one()
