"""Names that a command gives to what it computes are none that a user's column may have."""

import pytest

from service.protocol.dml import Delete, InsertValues, Statement, Update
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, StatementId, Term
from tests.support.state_store import prepared_store, relation
from workers.cdc.apply import applying
from workers.cdc.fold import Folded
from workers.cdc.pgoutput import piece_of
from workers.state_store.dml import DmlStore
from workers.state_store.postgres import PostgresStore

pytestmark = pytest.mark.postgres

TERM, GENERATION = Term(7), Generation(5)
NAMES = ("_row", "_again", "_there", "found", "given", "p", "t", "g", "made", "typed", "c0")
TABLE = relation(1, "t", dict.fromkeys(NAMES, "bigint"))


async def test_columns_may_have_any_name(database_url: str) -> None:
    ones, twos = (f"({', '.join([number] * len(NAMES))})" for number in ("1", "2"))
    statements: tuple[Statement, ...] = (
        InsertValues(id=StatementId(1), relation=TABLE, columns=NAMES, source=f"values {ones}, {twos}"),
        Update(
            id=StatementId(2),
            relation=TABLE,
            assignments=(("found", "p + 10"), ("_row", "_row * 5")),
            predicate="t = 2",
        ),
        Delete(id=StatementId(3), relation=TABLE, predicate="_again = 1"),
    )
    async with prepared_store(database_url) as store:
        await store.tables.claim(TERM)
        await store.tables.create(TABLE, term=TERM)
        await store.tables.fence(DATABASE_GRAPH, GENERATION, term=TERM)
        outcome = DmlStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION).run(statements, Epoch(9))
        assert [(result.affected, result.error) for result in outcome.results] == [(2, None), (1, None), (1, None)]
        with applying(PostgresStore(store.logins.writer_url, DATABASE_GRAPH, GENERATION)) as writing:
            row = tuple(piece_of("7") for _ in NAMES)
            assert not writing.load(TABLE, Folded({row[:1]: row}, ended=((piece_of("10"),),)))
            writing.begin(TABLE, Epoch(9))
            written = writing.written()
            assert (written.made, written.ended) == (1, 1)
