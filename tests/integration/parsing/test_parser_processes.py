"""Parser processes: what they answer, and how they are given up."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from service.domain.errors import Invalid, Unavailable
from service.parsing.pool import ParserProcesses
from service.protocol.ids import RelationId
from service.sql.dml.bind import bind_update
from service.sql.parse import parse
from service.sql.statements.dml import Update
from service.sql.statements.logical_views import CreateView
from service.sql.statements.select import Select
from service.sql.statements.tables import CreateTable, table_relation

DEEP = "select " + "date(" * 30 + "a" + ")" * 30


@pytest.fixture
async def parsers() -> AsyncGenerator[ParserProcesses]:
    made = ParserProcesses(processes=1)
    yield made
    await made.close()


async def test_a_process_parses_and_binds_and_refuses_as_the_service_would(parsers: ParserProcesses) -> None:
    created = parse("create table t (id int primary key, a int)")
    assert isinstance(created, CreateTable)
    relation = table_relation(created).model_copy(update={"id": RelationId(7)})
    statement = await parsers.run(40, parse, "update t set a = abs(a) + 1 where id = 3")
    assert isinstance(statement, Update)
    bound = await parsers.run(40, bind_update, statement, {"t": relation})
    assert (bound.relation, [name for name, _ in bound.assignments]) == (relation, ["a"])
    with pytest.raises(Invalid, match='syntax error at or near "nonsense"') as refused:
        await parsers.run(20, parse, "nonsense")
    assert refused.value.position == 1


async def test_a_tree_is_parsed_again_where_it_is_used(parsers: ParserProcesses) -> None:
    statement = await parsers.run(40, parse, "create view v as select a from t")
    assert isinstance(statement, CreateView)
    assert (statement.query.start, dict(statement.reads)) == (17, {"t": 32})
    assert statement.query.root.sql() == "SELECT a FROM t"


async def test_s2_a_text_that_takes_exponential_time_is_given_up_with_its_process(parsers: ParserProcesses) -> None:
    with pytest.raises(Invalid, match=r"takes more than 1\.0 s to be parsed"):
        await parsers.run(len(DEEP), parse, DEEP)
    assert isinstance(await parsers.run(8, parse, "select 1"), Select)


async def test_s2_a_caller_that_leaves_takes_its_process_along(parsers: ParserProcesses) -> None:
    call = asyncio.create_task(parsers.run(1 << 30, parse, DEEP))
    waiting = asyncio.create_task(parsers.run(8, parse, "select 1"))
    done, _ = await asyncio.wait({call, waiting}, timeout=0.2)
    assert not done
    call.cancel()
    assert isinstance(await waiting, Select)


async def test_s2_calls_beyond_the_bound_are_refused() -> None:
    parsers = ParserProcesses(processes=1, waiting=0)
    call = asyncio.create_task(parsers.run(1 << 30, parse, DEEP))
    await asyncio.wait({call}, timeout=0.2)
    with pytest.raises(Unavailable, match="1 parses of long statements of this caller run, and 0 of others"):
        await parsers.run(8, parse, "select 1")
    call.cancel()
    await asyncio.wait({call})
    await parsers.close()


async def test_a8_a_caller_with_many_long_statements_delays_no_other() -> None:
    parsers = ParserProcesses(processes=2, waiting=8)
    flood = [asyncio.create_task(parsers.of("a").run(1 << 30, parse, DEEP)) for _ in range(6)]
    done, waiting = await asyncio.wait(flood, timeout=0.2)
    assert (len(done), len(waiting)) == (1, 5), "one runs, and four wait"
    with pytest.raises(Unavailable, match="of this caller"):
        await done.pop()
    async with asyncio.timeout(30):
        assert isinstance(await parsers.of("b").run(8, parse, "select 1"), Select)
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)
    await parsers.close()
