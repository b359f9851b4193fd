"""Which texts are parsed where."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import pytest

from service.operations.offload import LONG, names_in, parsed, planned, typed
from service.sql.queries.finishing import description, finished
from service.sql.statements.dml import Insert
from service.sql.text.tokens import mentioned
from tests.support.expressions import query_of, table

P = ParamSpec("P")
T = TypeVar("T")


class Counted:
    """Parses here, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def of(self, _: str) -> "Counted":
        return self

    async def run(self, _: int, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.calls += 1
        return read(*args, **kwargs)


@pytest.mark.parametrize(("length", "calls"), [(100, 0), (LONG - 100, 0), (LONG + 100, 1)])
async def test_a9_long_constants_are_parsed_in_the_share_of_their_caller(length: int, calls: int) -> None:
    """A hundred of them in threads of the service left no time for barriers and answers."""
    parsers: Any = Counted()
    statement = await parsed(parsers, f"INSERT INTO t VALUES ('{'x' * (length - 25)}')")
    assert isinstance(statement, Insert)
    assert parsers.calls == calls


@pytest.mark.parametrize(("text", "calls"), [("'x'", 0), ("'$'", 1), ("'\"\"'", 1)])
async def test_i13_the_names_of_a_long_statement_are_looked_for_elsewhere_if_that_takes_long(
    text: str, calls: int
) -> None:
    """A sign of a currency in an INSERT of a megabyte stopped everybody for 2.4 s."""
    parsers: Any = Counted()
    statement = f"INSERT INTO t VALUES ({text}){', (1)' * LONG}"
    assert await names_in(parsers, statement) == mentioned(statement)
    assert parsers.calls == calls


@pytest.mark.parametrize(("levels", "calls"), [(2, 0), (10, 1)])
async def test_i13_a_query_of_many_steps_is_planned_in_another_process(levels: int, calls: int) -> None:
    """Each level uses the value of the one below it twice. 18 of them stopped the service for 42 s."""
    orders = table("create table orders (id bigint primary key, x int)").model_copy(update={"name": "orders"})
    parts = [f"c{at} as (select id, x + x as x from {f'c{at - 1}' if at else 'orders'})" for at in range(levels)]
    text = f"with {', '.join(parts)} select id, x from c{levels - 1}"
    parsers: Any = Counted()
    (draft,) = await planned(parsers, text, query_of(text), {"orders": orders}, {}, ["id", "x"])
    assert parsers.calls == calls
    known = {orders.id: orders}
    assert "null::bigint" in await typed(parsers, draft, description, known)
    assert parsers.calls == 2 * calls
    done = await typed(parsers, draft, finished, ["bigint", "integer"], known)
    assert [column.name for column in done.relation.columns] == ["id", "x"]
    assert parsers.calls == 3 * calls
