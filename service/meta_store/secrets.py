"""Remember generated secrets: the passwords of the state store's logins. No catalog shows them."""

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from service.meta_store.engine import translated
from service.meta_store.schema.core import secret


async def remembered(engine: AsyncEngine, name: str, *, proposed: str) -> str:
    """Return the secret called `name`. Store `proposed` where there is none yet. Raises Unavailable."""
    with translated():
        async with engine.begin() as connection:
            await connection.execute(insert(secret).values(name=name, value=proposed).on_conflict_do_nothing())
            return (await connection.execute(select(secret.c.value).where(secret.c.name == name))).scalar_one()
