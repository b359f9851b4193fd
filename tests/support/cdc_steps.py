"""Single steps of an external database that is followed, for tests that say exactly what happens."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from tests.support.real_cdc import CdcWorld, External, Followed, Writer

Started = Callable[..., AbstractAsyncContextManager[CdcWorld]]


def execute(world: CdcWorld, *statements: str) -> None:
    """Run statements one by one on the external database, beside the model."""
    for statement in statements:
        world.external.admin.execute(statement.encode())


def put(external: External, writer: Writer, table: Followed, key: int, value: str) -> None:
    text = f"insert into {table.name} (id, n, t) values (%s, %s, %s) returning *"
    assert external.run(writer, text, [key, key, value], lambda made: (table.name, None, made))


def move(external: External, writer: Writer, table: Followed, key: int, other: int) -> None:
    text = f"update {table.name} set id = %s where id = %s returning *"
    assert external.run(writer, text, [other, key], lambda made: (table.name, (key,), made))


def remove(external: External, writer: Writer, table: Followed, key: int) -> None:
    text = f"delete from {table.name} where id = %s returning *"
    assert external.run(writer, text, [key], lambda _: (table.name, (key,), None))


def add(world: CdcWorld, table: Followed, key: int, value: str) -> None:
    """Insert one row in a transaction of its own."""
    writer = world.external.writer()
    put(world.external, writer, table, key, value)
    world.external.commit(writer)


async def finish(world: CdcWorld) -> None:
    await world.epoch(world.throttled(None))
    for _ in range(20):
        await world.epoch(interval_ms=50)
    assert len(world.finished | set(world.broken)) == len(world.external.tables)
    assert world.waiting is None
