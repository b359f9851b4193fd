"""Queries of one caller leave connections to the meta store to the others (I13)."""

import asyncio

from service.operations.statements import dispatch
from service.ports.audit import itself
from service.protocol.table_format import Capabilities
from tests.unit.operations.test_limited_format import REACHED, world

FLOOD, OTHER = itself("a flood"), itself("another")


async def test_a_query_takes_a_turn_of_its_caller() -> None:
    """200 SELECTs at once took all connections, and others waited for one until they were answered 503."""
    here = await world(Capabilities(sql_reader=True))
    reads = here.calls.reads
    async with reads.turn(FLOOD.actor), reads.turn(FLOOD.actor), reads.turn(FLOOD.actor):
        asking = asyncio.create_task(dispatch.run(here, "select * from t", session={}, asked_by=FLOOD))
        other = await dispatch.run(here, "select * from t", session={}, asked_by=OTHER)
        assert other.rows == REACHED.rows
        answered, _ = await asyncio.wait({asking}, timeout=0.1)
        assert not answered
    assert (await asking).rows == REACHED.rows
