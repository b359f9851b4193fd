"""I1 with respect to an external Postgres: random transactions, interleaved with everything that a worker asks.

Whatever a worker asks the external database, writers may do something before it is answered: pages, the present end of
the log, single rows. Transactions stay open across reads, roll back, whole or to a savepoint, are prepared and ended by
somebody else, commit without being visible; rows move from one partition to another. Workers are dropped with what they
wrote, and actors change.
"""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from service.protocol.mutation import Pause, Resume
from tests.support.cdc_steps import ENTIRE, NUMBERS, PARTED, SPLIT, TEXTS
from tests.support.real_cdc import CdcWorld, External, LocalPages, interleaved
from tests.support.state_store import prepared_store
from workers.cdc import backoff, log, patience
from workers.runners import source_scan as executor

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]


async def _live(world: CdcWorld, random: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Random(random.randrange(1 << 30))
    with interleaved(random, world.external, monkeypatch, random.choice((2, 8, 20))):
        for _ in range(25):
            for _ in range(random.choice((0, 3, 10))):
                world.external.change(random)
            mutation: Any = None
            # The log may come an epoch later than it was asked for.
            monkeypatch.setattr(patience, "FIRST_SECONDS", slow.choice((0.0, 5.0, 5.0)))
            if not random.randrange(4):
                mutation = random.choice(
                    (
                        Pause(),
                        Resume(),
                        Resume(),
                        *map(world.throttled, (None, 0, 5_000, 5_000)),
                        world.rescaled(random.choice((1, 2, 3))),
                    )
                )
            await world.epoch(mutation, kill=not random.randrange(6))


@pytest.mark.parametrize("lake", [False, True])
@pytest.mark.parametrize("seed", [0, 4])
async def test_a_table_is_the_external_one_up_to_its_positions_at_every_epoch(
    database_url: str, external_url: str, monkeypatch: pytest.MonkeyPatch, seed: int, lake: bool
) -> None:
    random = Random(seed)
    monkeypatch.setattr(executor, "PagesJob", LocalPages)
    monkeypatch.setattr(log, "PART_CHANGES", random.choice((3, 20, 20_000)))
    tables = random.choice(((NUMBERS,), (SPLIT,), (TEXTS,), (ENTIRE,), (NUMBERS, SPLIT, TEXTS)))
    if seed == 4:
        tables = (PARTED,)
    tables = tuple(replace(one, lake=lake) for one in tables)
    monkeypatch.setattr(backoff, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(backoff, "SLOW_TIMES", 0.0)
    monkeypatch.setattr(backoff, "HELD_TIMES", 0.0)
    monkeypatch.setattr(executor, "ADVANCE_BYTES", random.choice((0, 1 << 20)))
    external = External(external_url, tables, unseen=seed % 2 == 1)
    for _ in range(random.choice((20, 120))):
        external.change(random)
    external.show()
    async with prepared_store(database_url) as store:
        world = CdcWorld(store, external, actors=random.choice((1, 2)))
        await world.prepare()
        await world.epoch(world.throttled(random.choice((None, 5_000, 5_000, 5_000))))
        await _live(world, random, monkeypatch)
        monkeypatch.setattr(patience, "FIRST_SECONDS", 5.0)
        external.rest()
        await world.epoch(Resume())
        await world.epoch(world.throttled(None))
        for _ in range(40):
            await world.epoch(interval_ms=100)
            if len(world.finished) == len(tables) and not world.waiting:
                break
        assert world.broken == {}
        assert len(world.finished) == len(tables), world.collected
        assert world.waiting is None
        world.close()
    external.close()
