"""An error of one statement is that statement's own; only a lost connection and the fence end the epoch (I7, I13)."""

from collections.abc import AsyncGenerator

import psycopg
import pytest

from service.protocol.dml import InsertValues, Statement, Update
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, StatementId
from service.protocol.relation import state_table
from tests.support.state_store import Store, relation, store_of
from workers.state_store.dml import DmlStore

pytestmark = pytest.mark.postgres

GENERATION = Generation(5)
PAIRS = relation(1, "t", {"id": "bigint", "v": "text"})


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[Store]:
    async with store_of(database_url, PAIRS, GENERATION) as prepared:
        yield prepared


def inserting(number: int, value: str) -> Statement:
    return InsertValues(
        id=StatementId(number), relation=PAIRS, columns=("id", "v"), source=f"values ({number}, ({value})::text)"
    )


def setting(number: int, value: str) -> Statement:
    return Update(id=StatementId(number), relation=PAIRS, assignments=(("v", value),))


@pytest.mark.parametrize(
    ("expression", "state"),
    [
        ("state.hold_generation(1, 999999)", "TF001"),
        ("pg_last_committed_xact()", "55000"),
        ("currval('state.row_ids')", "55000"),
        ("repeat('x', 1073741823)", "54000"),
        ("'a'::int", "22P02"),
        ("1/0", "22012"),
    ],
)
def test_s1_an_error_that_a_statement_raises_fails_it_alone(store: Store, expression: str, state: str) -> None:
    dml = DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION)
    statements = [inserting(1, "'a'"), setting(2, expression), inserting(3, "'b'")]
    first, bad, last = dml.run(statements, Epoch(9)).results
    assert (first.affected, first.error, last.affected, last.error) == (1, None, 1, None)
    assert (bad.affected, bad.sqlstate) == (0, state)


def test_i13_an_error_that_quotes_a_long_value_is_cut(store: Store) -> None:
    """The answer with one of 200 MB was refused, so no epoch was committed any more."""
    dml = DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION)
    (bad,) = dml.run([inserting(1, "repeat('x', 20000000)::bigint")], Epoch(9)).results
    assert bad.error is not None
    assert bad.error.startswith('invalid input syntax for type bigint: "xxx')
    assert (len(bad.error), bad.sqlstate) == (2_000, "22P02")
    with psycopg.connect(store.logins.writer_url) as connection:
        sent = "select length(error), code from state.attempt('select repeat(''x'', 20000000)::bigint')"
        assert connection.execute(sent).fetchone() == (2_000, "22P02")


def test_s1_the_fence_ends_the_epoch(store: Store) -> None:
    dml = DmlStore(store.logins.writer_url, DATABASE_GRAPH, Generation(GENERATION - 1))
    with pytest.raises(psycopg.Error) as refused:
        dml.run([inserting(1, "'a'")], Epoch(9))
    assert refused.value.sqlstate == "TF001"


async def test_s12_the_writer_is_bounded_in_memory_files_and_time(store: Store) -> None:
    with psycopg.connect(store.logins.writer_url) as connection:
        settings = {
            name: connection.execute("select current_setting(%s)", [name]).fetchone()
            for name in ("temp_file_limit", "statement_timeout", "work_mem")
        }
    assert settings == {"temp_file_limit": ("4GB",), "statement_timeout": ("5min",), "work_mem": ("16MB",)}


async def test_a5_a_table_that_was_dropped_has_its_users_name(store: Store) -> None:
    await store.run(f"set application_name = 'tidefill'; drop table {state_table(PAIRS.id)} cascade")
    dml = DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION)
    (gone,) = dml.run([inserting(1, "'a'")], Epoch(9)).results
    assert gone.error == 'relation "t" does not exist'
