"""The drafts of a query mean in Postgres what the user wrote: each stage as one full SELECT gives the query's rows."""

from collections.abc import Iterator, Mapping

import psycopg
import pytest

from service.protocol.relation import Relation
from tests.support import queries_forms, queries_nexmark, queries_tpch
from tests.support.postgres import fresh_database
from tests.support.stages_oracle import Evaluated, evaluate, relations_of, run

pytestmark = pytest.mark.postgres

SEEDS = (0.1, 0.4, 0.9)


@pytest.fixture(scope="module")
def connection(postgres_url: str) -> Iterator[psycopg.Connection]:
    """A database with the tables of all queries."""
    with fresh_database(postgres_url) as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set timezone = 'UTC'")
        for text in (*queries_forms.TABLES.values(), *queries_tpch.TABLES.values(), *queries_nexmark.TABLES.values()):
            run(connection, text)
        for name, text in queries_forms.VIEWS.items():
            run(connection, f"create view {name} as {text}")
        for rows in (queries_tpch.ROWS, queries_nexmark.ROWS):
            connection.execute("select setseed(0.3)")
            run(connection, rows)
        yield connection


def _filled(connection: psycopg.Connection, seed: float) -> None:
    run(connection, f"truncate a, b, c, e; select setseed({seed})")
    run(connection, queries_forms.ROWS)


def _check(connection: psycopg.Connection, text: str, relations: Mapping[str, Relation]) -> Evaluated:
    found = evaluate(connection, text, relations, queries_forms.VIEWS)
    columns = ", ".join(f'"{one.name}"' for one in found.relation.visible)
    mine = run(connection, f"select {columns} from {found.table}").fetchall()
    assert sorted(map(_shown, mine)) == sorted(map(_shown, run(connection, text).fetchall()))
    key = ", ".join(f'"{part.name}"' for part in found.relation.key)
    assert run(connection, f"select {key} from {found.table} group by {key} having count(*) > 1").fetchall() == []
    return found


def _shown(row: tuple[object, ...]) -> str:
    """Show a row, with the first digits of a float: the stages sum floats exactly, and Postgres one after the other."""
    return repr(tuple(f"{one:.10g}" if isinstance(one, float) else one for one in row))


@pytest.mark.parametrize(("text", "key"), queries_forms.FORMS, ids=[text for text, _ in queries_forms.FORMS])
def test_the_stages_of_a_query_give_its_rows(connection: psycopg.Connection, text: str, key: str | None) -> None:
    relations = relations_of(connection, list(queries_forms.TABLES))
    for seed in SEEDS:
        _filled(connection, seed)
        found = _check(connection, text, relations)
        if key is not None:
            assert ", ".join(part.name for part in found.relation.key) == key


@pytest.mark.parametrize("name", queries_tpch.QUERIES)
def test_tpch(connection: psycopg.Connection, name: str) -> None:
    _check(connection, queries_tpch.QUERIES[name], relations_of(connection, list(queries_tpch.TABLES)))


@pytest.mark.parametrize("name", queries_nexmark.QUERIES)
def test_nexmark(connection: psycopg.Connection, name: str) -> None:
    text = queries_nexmark.QUERIES[name]
    # The stages order rows of one price by their key, and Postgres as it likes.
    text = text.replace("order by price desc)", "order by price desc, id)")
    _check(connection, text, relations_of(connection, list(queries_nexmark.TABLES)))
