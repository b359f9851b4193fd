"""What a pin holds no vacuum deletes, what a vacuum passed no pin can hold, and the dead hold nothing for long."""

import asyncio

import pytest

from service.domain.errors import Conflict, Unavailable
from service.protocol.ids import DATABASE_GRAPH, Epoch, Term
from service.serving import pins as pins_module
from service.serving.pins import PostgresPins
from tests.support.state_store import Store, relation

pytestmark = pytest.mark.postgres

TERM = Term(7)
ORDERS = relation(1, "orders")


@pytest.fixture
async def pins(store: Store) -> PostgresPins:
    await store.tables.create(ORDERS, term=TERM)
    # One row, a new version in each of the epochs 1 to 40.
    await store.run("insert into state.t_1 select 0, 1, e::text, e, e + 1 from generate_series(1, 40) e")
    await store.tables.publish(DATABASE_GRAPH, Epoch(40), term=TERM, created=[ORDERS])
    return PostgresPins(store.pool)


async def _at(store: Store, epoch: int) -> list[tuple[object, ...]]:
    return await store.rows(f"select v from state.t_1 where _from <= {epoch} and _to > {epoch}")


async def _vacuum(store: Store, epoch: int) -> int:
    return await store.tables.vacuum([ORDERS.id], DATABASE_GRAPH, Epoch(epoch), term=TERM)


async def test_a_pinned_epoch_stays_readable(store: Store, pins: PostgresPins) -> None:
    async with pins.pin(DATABASE_GRAPH, Epoch(20), holder="a"), pins.pin(DATABASE_GRAPH, Epoch(30), holder="b"):
        assert await _vacuum(store, 35) == 19
        assert await _at(store, 20) == [("20",)]
        assert await _at(store, 30) == [("30",)]
    assert await _vacuum(store, 35) == 15
    assert await _at(store, 35) == [("35",)]
    assert await store.rows("select * from state.pin") == []


async def test_an_epoch_that_was_vacuumed_cannot_be_pinned(store: Store, pins: PostgresPins) -> None:
    await _vacuum(store, 20)
    with pytest.raises(Conflict, match="epoch 19 can no longer be read"):
        async with pins.pin(DATABASE_GRAPH, Epoch(19), holder="late"):
            pass
    async with pins.pin(DATABASE_GRAPH, Epoch(20), holder="in time"):
        assert await _at(store, 20) == [("20",)]


async def test_the_horizon_never_goes_back(store: Store, pins: PostgresPins) -> None:
    await _vacuum(store, 20)
    await _vacuum(store, 10)
    assert await store.rows("select epoch from state.horizon") == [(20,)]


async def test_the_horizon_is_stored_before_anything_is_deleted(store: Store, pins: PostgresPins) -> None:
    """A vacuum that fails in the middle has deleted nothing a later pin could ask for."""
    await store.run("alter table state.t_1 rename column _to to hidden")
    assert await _vacuum(store, 20) == 0
    with pytest.raises(Conflict):
        async with pins.pin(DATABASE_GRAPH, Epoch(19), holder="late"):
            pass


async def test_the_pin_of_a_dead_holder_runs_out(store: Store, pins: PostgresPins) -> None:
    await store.run("insert into state.pin values (1, 10, 'dead', clock_timestamp() - interval '1 ms')")
    assert await _vacuum(store, 20) == 19
    assert await store.rows("select * from state.pin") == []


async def test_a_pin_is_refreshed(store: Store, pins: PostgresPins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins_module, "REFRESH_SECONDS", 0.01)
    async with pins.pin(DATABASE_GRAPH, Epoch(20), holder="a"):
        first = await store.rows("select expires_at from state.pin")
        async with asyncio.timeout(10):
            while await store.rows("select expires_at from state.pin") == first:
                pass


@pytest.mark.parametrize("loss", ["delete from state.pin", "update state.pin set expires_at = now()"])
async def test_a_reader_that_lost_its_pin_is_ended(
    store: Store, pins: PostgresPins, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    monkeypatch.setattr(pins_module, "REFRESH_SECONDS", 0.01)

    async def read() -> None:
        async with asyncio.timeout(10), pins.pin(DATABASE_GRAPH, Epoch(20), holder="a"):
            await store.run(loss)
            await asyncio.Event().wait()

    with pytest.raises(Unavailable, match="the pin of a on epoch 20 could not be kept"):
        await read()


async def test_a_reader_whose_store_is_away_is_ended_in_time(
    store: Store, pins: PostgresPins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pin may have run out on the database's clock, so what is read may no longer be whole."""
    monkeypatch.setattr(pins_module, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(pins_module, "PIN_SECONDS", 0.6)
    monkeypatch.setattr(pins_module, "MARGIN_SECONDS", 0.1)

    async def away(*_: object) -> bool:
        raise Unavailable("away")

    monkeypatch.setattr(pins, "_refresh", away)
    with pytest.raises(Unavailable, match="could not be kept"):
        async with asyncio.timeout(10), pins.pin(DATABASE_GRAPH, Epoch(20), holder="a"):
            await asyncio.Event().wait()


async def test_the_readers_own_error_passes(pins: PostgresPins) -> None:
    with pytest.raises(TimeoutError, match="mine"):
        async with pins.pin(DATABASE_GRAPH, Epoch(20), holder="a"):
            raise TimeoutError("mine")
