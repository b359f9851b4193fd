"""External tables of every shape that matters, and single steps of tests that say exactly what happens."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from service.protocol.cdc import Split
from tests.support.real_cdc import CdcWorld, External, Followed, Writer

Started = Callable[..., AbstractAsyncContextManager[CdcWorld]]
NUMBERS = Followed(1, "numbers", (("id", "bigint"), ("n", "bigint"), ("t", "text")), 1)
SPLIT = Followed(
    2,
    "split",
    (("id", "bigint"), ("n", "bigint"), ("t", "text")),
    1,
    splits=(Split(right="-10"), Split(left="-10", right="20"), Split(left="20", right="21"), Split(left="21")),
)
TEXTS = Followed(
    3,
    "texts",
    (("a", "text"), ("b", "bigint"), ("n", "bigint"), ("t", "text")),
    2,
    splits=(Split(right="b"), Split(left="b")),
    collation='"C"',
    timestamp="changed_at",
)
STAMPED = Followed(8, "stamped", (("id", "bigint"), ("n", "bigint"), ("t", "text")), 1, timestamp="committed_at")
PARTED = Followed(
    9,
    "parted",
    (("id", "bigint"), ("n", "bigint"), ("t", "text")),
    1,
    splits=(Split(right="5"), Split(left="5")),
    partition="range (id)",
    parts=(
        ("low", "for values from (minvalue) to (0)"),
        ("middle", "for values from (0) to (10)"),
        ("high", "for values from (10) to (4000)"),
    ),
)
ENTIRE = Followed(4, "entire", (("id", "bigint"), ("n", "bigint"), ("t", "text")), 1, identity="full")


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
    # On a busy machine a source looks far away for a while, and is asked again in time.
    for _ in range(400):
        if world.waiting is None and len(world.finished | set(world.broken)) == len(world.external.tables):
            break
        await world.epoch(interval_ms=1000)
        await asyncio.sleep(0.05)  # noqa: TID251 - the source is asked again when time has passed
    assert len(world.finished | set(world.broken)) == len(world.external.tables)
    assert world.waiting is None
