"""ALTER TABLE .. ADD COLUMN on a real meta store and a real state store: views, users, and a death in between."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import psycopg
import pytest

from service.domain.errors import Conflict, Invalid, MetaError
from service.operations.jobs import altering
from service.ports.parsing import Parsers
from service.protocol.columns import Column, ColumnType
from service.sql.statements.statement import Statement
from tests.support.both_stores import BothStores
from tests.support.meta_store import new_table

pytestmark = pytest.mark.postgres
ADD = "ALTER TABLE t ADD COLUMN c int"


@pytest.fixture
async def here(laid_out_url: str) -> AsyncGenerator[BothStores]:
    """A readable table `t` of one row."""
    async with BothStores.on(laid_out_url) as made:
        table = await made.created(new_table("t"))
        await made.store.run(f"insert into state.t_{table} (_vnode, id, name, _from) values (0, 1, 'a', 5)")
        yield made


async def refused(here: BothStores, text: str, kind: type[MetaError], message: str) -> None:
    with pytest.raises(kind) as error:
        await here.run(text)
    assert message in str(error.value)


async def test_u11_a_view_that_selects_a_star_stands_in_the_way_of_a_new_column(here: BothStores) -> None:
    for query in ("SELECT * FROM t", "SELECT x.* FROM t AS x", "SELECT id FROM (SELECT * FROM t) q"):
        await here.run(f"CREATE VIEW v AS {query}")
        await refused(here, ADD, Invalid, 'view "v" selects *, and would not show the column')
        await here.run("DROP VIEW v")
    await here.run("CREATE VIEW v AS SELECT count(*) AS n, max(price * 2) AS m FROM t")
    assert (await here.run(ADD)).tag == "ALTER_TABLE"
    assert await here.rows("SELECT c FROM t") == ((None,),)


async def test_no_text_of_a_view_is_parsed_while_the_table_is_locked(
    here: BothStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty views of a stranger took 43 s, and everybody's CREATE over the table failed after 60."""
    parsed = altering.parsed
    texts: list[str] = []

    async def told(parsers: Parsers, text: str) -> Statement:
        texts.append(text)
        return await parsed(parsers, text)

    monkeypatch.setattr(altering, "parsed", told)
    await here.run("CREATE VIEW v AS SELECT count(*) AS n FROM t")
    await here.run("CREATE VIEW w AS SELECT * FROM t")
    await refused(here, ADD, Invalid, 'view "w" selects *')
    assert texts == []
    await here.store.run("update tidefill.relation set selects_all = null")
    await refused(here, ADD, Invalid, 'view "w" selects *')
    assert texts == ["CREATE VIEW v AS SELECT count(*) AS n FROM t", "CREATE VIEW w AS SELECT * FROM t"]


async def test_u11_a_new_column_whose_recording_failed_is_taken_up(here: BothStores) -> None:
    """The state store has it, the catalog has not: as a service leaves it that dies between the two."""
    async with here.stores.begin() as tx:
        entry = await tx.catalog.named("t")
    assert entry is not None
    added = Column(name="c", type=ColumnType.parse("varchar"), length=3, default="'x'")
    wider = entry.relation.model_copy(update={"columns": (*entry.relation.columns, added)})
    await here.store.tables.add_column(wider)
    await refused(here, ADD, Conflict, "repeat that one")
    await here.run("ALTER TABLE t ADD COLUMN c varchar(3) DEFAULT 'x'")
    assert set(await here.rows("SELECT c FROM t")) == {("x",)}
    await refused(here, ADD, Invalid, 'column "c" of relation "t" already exists')
    (notice,) = (await here.run("ALTER TABLE t ADD COLUMN IF NOT EXISTS c int")).notices
    assert notice.endswith("already exists, skipping")
    with pytest.raises(psycopg.errors.CheckViolation, match="value too long"):
        await here.store.run(f"update state.t_{wider.id} set c = 'long'")


async def test_u11_who_uses_a_table_is_named_to_who_adds_a_column(
    here: BothStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(altering, "IN_USE_WAIT", timedelta(seconds=1))
    async with await psycopg.AsyncConnection.connect(here.store.url, application_name="tidefill-test") as reader:
        await reader.execute("select count(*) from public.t")
        await refused(here, ADD, Conflict, 'table "t" is in use by the transaction of session')
        await reader.rollback()
        await here.run(ADD)
