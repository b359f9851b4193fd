"""Logical views on a real meta store and a real state store: names, rights, dependencies, and a death in between."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from service.domain.errors import Conflict, Invalid, MetaError, NotFound, Unavailable
from service.domain.job import JobEvent
from service.operations.barriers import recovery
from service.operations.naming import named
from service.operations.verify import worker_rpc
from service.ports.records import NewLogicalView
from service.protocol.ids import DATABASE_GRAPH, Epoch, RelationId
from service.protocol.stage import Engine
from service.serving.logical_views import PostgresViews
from tests.support.both_stores import BothStores
from tests.support.http import changed
from tests.support.meta_store import A_TEST, NOW, add_creating, new_table, new_view
from tests.support.state_store import Store

pytestmark = pytest.mark.postgres

VIEW = "CREATE VIEW v AS SELECT id, upper(name) AS shout FROM t WHERE id > 1"


class Here(BothStores):
    """Both stores, with what these tests ask of them."""

    async def names(self) -> list[Any]:
        return [name for (name,) in await self.rows("SHOW VIEWS")]

    async def write(self, relation: RelationId, *rows: tuple[int, str], epoch: int = 5) -> None:
        for number, name in rows:
            await self.store.run(
                f"insert into state.t_{relation} (_vnode, id, name, _from) values (0, {number}, '{name}', {epoch})"
            )

    async def clean_up(self) -> bool:
        return await recovery.clean_up(self.world, term=self.term)

    async def in_public(self) -> set[object]:
        return {
            name
            for (name,) in await self.store.rows(
                "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'v'"
            )
        }


@pytest.fixture
async def here(laid_out_url: str) -> AsyncGenerator[Here]:
    """A readable table `t` of two rows."""
    async with Here.on(laid_out_url) as made:
        table = await made.created(new_table("t"))
        await made.write(table, (1, "a"), (2, "b"), (3, "c"))
        yield made


async def refused(here: Here, text: str, kind: type[MetaError], message: str) -> None:
    with pytest.raises(kind) as error:
        await here.run(text.replace("^", ""))
    assert message in str(error.value)
    if "^" in text:
        assert getattr(error.value, "position", None) == text.index("^") + 1


async def test_it_is_read_as_its_query_is_at_the_published_epoch(here: Here) -> None:
    """I2: what is written and not published is not seen."""
    assert (await here.run(VIEW)).tag == "CREATE_VIEW"
    await here.write(RelationId(1), (4, "later"), epoch=6)
    assert await here.rows("SELECT * FROM v ORDER BY id") == ((2, "B"), (3, "C"))
    await here.run("CREATE VIEW counted AS SELECT count(*) AS n, max(shout) AS last FROM v JOIN t USING (id)")
    assert await here.rows("SELECT * FROM counted") == ((2, "C"),)
    await here.store.tables.publish(DATABASE_GRAPH, Epoch(6), term=here.term, created=[])
    assert await here.rows("SELECT * FROM counted") == ((3, "LATER"),)


async def test_it_is_listed_and_described(here: Here) -> None:
    await here.run(VIEW)
    await here.run("CREATE VIEW w AS SELECT price * 2 AS doubled, tags FROM t")
    assert await here.names() == ["v", "w"]
    assert (await here.run("DESCRIBE w")).rows[0][:2] == ("doubled", "numeric")
    assert (await here.run("SHOW COLUMNS FROM w")).rows[1][:2] == ("tags", "integer[]")
    assert await here.rows("SHOW CREATE VIEW v") == (("public.v", VIEW),)
    assert await here.rows("SELECT name, schema_name, definition FROM rw_catalog.rw_views WHERE name = 'v'") == (
        ("v", "public", VIEW),
    )
    assert await here.rows("SELECT id FROM rw_catalog.rw_table_stats") == ((1,),)
    await refused(here, "SHOW CREATE TABLE v", Invalid, '"v" is not a table; it is a view')
    await refused(here, "SHOW CREATE VIEW t", Invalid, '"t" is not a view; it is a table')


async def test_a_verification_by_the_store_names_rows_that_differ(here: Here) -> None:
    """The planted rows: one is wrong, one is missing, one is too many; a logical view is read as the store reads it."""
    await here.run(VIEW)
    query = (
        "SELECT id, shout AS name, CASE shout WHEN '{a;b}' THEN 1.5 END AS price, NULL::integer[] AS tags FROM v -- {x}"
    )
    view = await here.created(replace(new_view("m", RelationId(1)), statement=f"CREATE MATERIALIZED VIEW m AS {query}"))
    await here.write(view, (2, "B"), (3, "C"))
    async with here.stores.begin() as tx:
        (job,) = [job for job in await tx.jobs.where() if job.name == "m"]
    equal = await worker_rpc.verify(here.world, job.id, Engine.STORE, asked_by=A_TEST)
    assert (equal.equal, equal.rows, equal.expected_rows, equal.engine) == (True, 2, 2, Engine.STORE)
    assert equal.digest == equal.expected_digest
    await here.store.run(f"update state.t_{view} set name = 'wrong' where id = 2")
    await here.store.run(f"delete from state.t_{view} where id = 3")
    await here.write(view, (9, "many"))
    found = await worker_rpc.verify(here.world, job.id, Engine.STORE, asked_by=A_TEST)
    assert not found.equal
    assert found.rows_missing == ("(2,B,,)", "(3,C,,)")
    assert found.rows_extra == ("(2,wrong,,)", "(9,many,,)")
    assert found.digest != found.expected_digest


async def test_a_verification_by_the_store_is_about_views_that_are_there(here: Here) -> None:
    async with here.stores.begin() as tx:
        creating = await add_creating(tx, new_view("m", RelationId(1)))
        (table,) = [job for job in await tx.jobs.where() if job.name == "t"]
    with pytest.raises(Conflict, match="cannot be read yet"):
        await worker_rpc.verify(here.world, creating.id, Engine.STORE, asked_by=A_TEST)
    with pytest.raises(Conflict, match="is a table"):
        await worker_rpc.verify(here.world, table.id, Engine.STORE, asked_by=A_TEST)


def reader_of(here: Here) -> str:
    return here.store.logins.reader_url.split("//")[1].split(":")[0]


async def test_it_widens_nothing(here: Here) -> None:
    """Whoever reads it needs the rights on what it reads: a right that is taken away is taken from the view, too."""
    await here.run(VIEW)
    (found,) = await here.store.rows("select reloptions::text from pg_class where relname = 'v'")
    assert found == ("{security_invoker=true}",)
    await here.store.run(f"revoke select on public.t from {reader_of(here)}")
    await refused(here, "SELECT * FROM v", Invalid, "permission denied")


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("CREATE VIEW w AS SELECT * FROM ^nope", NotFound, 'relation "nope" does not exist'),
        ("CREATE VIEW w AS SELECT ^nope FROM t", Invalid, 'column "nope" does not exist'),
        ("CREATE VIEW w AS SELECT id + ^'x' AS y FROM t", Invalid, "invalid input syntax for type bigint"),
        ("CREATE VIEW w AS SELECT * FROM ^state.t_1", Invalid, 'not of "state"'),
        ("CREATE VIEW w AS SELECT * FROM ^rw_catalog.rw_tables", Invalid, 'not of "rw_catalog"'),
        ("CREATE VIEW w AS SELECT * FROM ^pg_authid", NotFound, 'relation "pg_authid" does not exist'),
        ("CREATE VIEW w AS SELECT ^pg_sleep(1) AS x FROM t", Invalid, "function pg_sleep is not allowed here"),
        ("CREATE VIEW w AS WITH x AS (^DELETE FROM t) SELECT 1 AS a", Invalid, "DELETE is not allowed here"),
        ("CREATE VIEW w AS SELECT 1 AS a; ^DROP TABLE t", Invalid, "more than one statement"),
        ("CREATE VIEW w AS ^SELECT id + 1 FROM t", Invalid, "column 1 of the view has no name"),
        ("CREATE VIEW w AS ^SELECT id, id FROM t", Invalid, 'column "id" specified more than once'),
        ("CREATE VIEW w (a, b) AS ^SELECT id FROM t", Invalid, "too many column names were specified"),
        ("CREATE VIEW w (a, ^a) AS SELECT id, name FROM t", Invalid, 'column "a" specified more than once'),
        ("CREATE VIEW w (name) AS ^SELECT id, name FROM t", Invalid, 'column "name" specified more than once'),
        ("CREATE VIEW w ^WITH (x = 1) AS SELECT id FROM t", Invalid, "a view takes no options"),
        ("CREATE VIEW w AS SELECT id FROM young", Conflict, "cannot be read: it is still being created"),
        (
            "CREATE MATERIALIZED VIEW w AS SELECT id FROM t UNION ALL SELECT id FROM young",
            Conflict,
            'table "young" cannot be read: it is still being created',
        ),
    ],
)
async def test_what_postgres_or_the_house_refuses_leaves_nothing(
    here: Here, text: str, kind: type[MetaError], message: str
) -> None:
    async with here.stores.begin() as tx:
        await tx.jobs.add(new_table("young"), now=NOW)
    await refused(here, text, kind, message)
    assert await here.names() == []
    assert await here.in_public() == {"t"}


async def test_names_are_shared_with_tables_and_materialized_views(here: Here) -> None:
    await here.run(VIEW)
    await refused(here, "CREATE VIEW t AS SELECT 1 AS a", Conflict, 'table with name "t" exists')
    await refused(here, VIEW, Conflict, 'view with name "v" exists')
    await refused(here, "CREATE TABLE v (id int PRIMARY KEY)", Conflict, 'view with name "v" exists')
    await refused(here, "CREATE MATERIALIZED VIEW v AS SELECT id FROM t", Conflict, 'view with name "v" exists')
    skipped = await here.run(VIEW.replace("VIEW v", "VIEW IF NOT EXISTS v"))
    assert skipped.notices == ('view "v" already exists, skipping',)
    await refused(here, "INSERT INTO ^v VALUES (1)", Invalid, 'cannot change view "v"')
    await refused(here, "DROP TABLE v", Conflict, '"v" is not a table; use DROP VIEW')
    await refused(here, "DROP VIEW t", Conflict, '"t" is not a view; use DROP TABLE')
    await refused(here, "DROP VIEW nope", NotFound, 'view "nope" does not exist')
    await refused(here, "DROP TABLE nope PURGE", NotFound, 'table "nope" does not exist')
    await refused(here, "DROP TABLE t PURGE", Invalid, "tidefill writes, and t has none")
    for purge in ("", " PURGE"):
        skipped = await here.run(f"DROP VIEW IF EXISTS nope{purge}")
        assert skipped.notices == ('view "nope" does not exist, skipping',)


async def test_a_drop_asks_for_cascade_and_takes_all_that_reads(here: Here) -> None:
    """I9: also a materialized view that reads it only in name."""
    await here.run(VIEW)
    await here.run("CREATE VIEW w AS SELECT shout FROM v")
    async with here.stores.begin() as tx:
        view = await tx.views.named("w")
    assert view is not None
    await here.created(replace(new_view("m", RelationId(1)), views=(view.id,)))
    await here.run("CREATE VIEW last AS SELECT count(*) AS n FROM m")
    await refused(here, "DROP TABLE t", Conflict, "depend on it: materialized view m, view v, view w, view last")
    await refused(here, "DROP VIEW v", Conflict, "depend on it: view w, materialized view m, view last")
    await here.run("DROP VIEW last")
    await refused(here, "DROP VIEW w", Conflict, "depend on it: materialized view m")
    await here.run("DROP VIEW v CASCADE")
    assert await here.names() == []
    async with here.stores.begin() as tx:
        entry = await tx.catalog.named("m")
    assert entry is not None
    assert entry.state == "Dropping"
    assert await here.clean_up()
    assert await here.in_public() == {"t", "m"}
    # The other one is named by the view that is being dropped.
    assert await here.store.rows("select name from tidefill.relation where kind = 'view'") == [("w",)]
    await here.run(VIEW)
    assert await here.rows("SELECT count(*) FROM v") == ((2,),)


async def test_what_is_dropped_while_it_is_read_is_removed_later_and_its_name_is_free_at_once(here: Here) -> None:
    """A view stands on its table in Postgres, too: a new table of the name does not wait for the old ones' clean-up."""
    await here.run(VIEW)
    async with here.stores.begin() as tx:
        for name in ("v", "t"):
            found = await named(tx, name)
            assert found is not None
            await tx.catalog.remove(found.id)
    again = await here.created(new_table("t"))
    await here.write(again, (9, "new"))
    assert await here.in_public() == {"t"}
    assert await here.clean_up()
    assert await here.rows("SELECT id FROM t") == ((9,),)
    await here.run(VIEW)
    assert await here.rows("SELECT shout FROM v") == (("NEW",),)


async def test_the_query_of_a_materialized_view_is_bound_through_all_of_them(here: Here) -> None:
    """Up to the tables below; whatever cannot be kept is refused with the name of the view that says so."""
    await here.created(new_table("u"))
    await here.run("CREATE VIEW bottom AS SELECT id, name FROM t WHERE id > 1 UNION ALL SELECT id, name FROM u")
    await here.run("CREATE VIEW top AS SELECT upper(name) AS shout, id FROM bottom")
    await here.run("CREATE VIEW clocked AS SELECT now() AS n FROM top")
    explain, create = (
        "EXPLAIN (backfill, format dot)",
        "CREATE MATERIALIZED VIEW m WITH (backfill_order = FIXED({})) AS",
    )
    told = await here.rows(f"{explain} {create.format('u -> t')} SELECT shout FROM top WHERE id < 9")
    assert told == (("digraph G {",), ('  "public.u" -> "public.t";',), ("}",))
    unused = "Table or source 'top' specified in backfill_order is not used in the query"
    await refused(here, f"{explain} {create.format('^top -> t')} SELECT id FROM top", Invalid, unused)
    refusal = 'view "clocked": now depends on the time of the statement'
    await refused(here, "CREATE MATERIALIZED VIEW m AS SELECT n FROM ^clocked", Invalid, refusal)


@pytest.mark.parametrize("kind", ["TABLE t", "VIEW v"])
async def test_a_drop_waits_for_a_view_that_is_being_added_and_sees_it(here: Here, kind: str) -> None:
    if kind == "VIEW v":
        await here.run(VIEW)
    async with here.stores.begin() as tx:
        found = await named(tx, kind[-1])
        assert found is not None
        new = NewLogicalView("late", "CREATE VIEW late AS ..", (("a", "text"),), (found.id,))
        await tx.views.add(new)
        drop = asyncio.create_task(here.run(f"DROP {kind}"))
        while not drop.done() and not await here.store.rows("select 1 from pg_locks where not granted"):
            pass
        assert not drop.done(), "it did not wait"
    with pytest.raises(Conflict, match="view late"):
        await drop


@pytest.mark.parametrize("name", ["t", "v"])
async def test_what_is_being_dropped_cannot_be_read_any_more(here: Here, name: str) -> None:
    """Whoever looked it up before comes too late to add a reader."""
    await here.run(VIEW)
    async with here.stores.begin() as tx:
        found = await named(tx, name)
    assert found is not None
    await here.run("DROP VIEW v" if name == "v" else "DROP TABLE t CASCADE")
    with pytest.raises(Conflict, match=f'"{name}" cannot be read: it'):
        async with here.stores.begin() as tx:
            await tx.views.add(NewLogicalView("late", "CREATE VIEW late AS ..", (), (found.id,)))
    late = replace(new_view("m", *((found.id,) if name == "t" else ())), views=(found.id,))
    with pytest.raises(Conflict, match=f'"{name}" cannot be read: it'):
        async with here.stores.begin() as tx:
            await tx.jobs.add(late, now=NOW)


async def test_if_not_exists_finds_the_view_that_another_call_was_quicker_to_create(here: Here) -> None:
    async with here.stores.begin() as tx:
        view = await tx.views.add(NewLogicalView("v", "CREATE VIEW v AS SELECT 1 AS n", (("n", "integer"),), ()))
        create = asyncio.create_task(here.run(VIEW.replace("VIEW v", "VIEW IF NOT EXISTS v")))
        while not create.done() and not await here.store.rows("select 1 from pg_locks where not granted"):
            pass
        await tx.views.show(view)
    assert (await create).notices == ('view "v" already exists, skipping',)


class Dying(PostgresViews):
    """The service dies before the state store hears of the view, or after."""

    def __init__(self, store: Store, *, after: bool) -> None:
        super().__init__(store.pool)
        self.after = after

    async def create(self, *args: Any, **kwargs: Any) -> None:
        if self.after:
            await super().create(*args, **kwargs)
        raise Unavailable("the state store is away")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_view_that_was_begun_is_taken_up_or_dropped(here: Here, after: bool) -> None:
    """I3, I9."""
    world = here.world
    for end in ("create", "drop"):
        here.world = changed(world, views=Dying(here.store, after=after))
        await refused(here, VIEW, Unavailable, "away")
        here.world = world
        await refused(here, "SELECT * FROM v", Conflict, 'view "v" cannot be read: it is still being created')
        await refused(here, "CREATE VIEW w AS SELECT * FROM v", Conflict, "still being created")
        other = VIEW.replace("> 1", "> 2")
        await refused(here, other, Conflict, "view named v already exists and is still being created")
        await refused(here, "CREATE TABLE v (id int)", Conflict, "view named v already exists and is still being")
        if end == "create":
            assert (await here.run(VIEW)).tag == "CREATE_VIEW"
            assert await here.rows("SELECT count(*) FROM v") == ((2,),)
        await here.run("DROP VIEW v")
        assert await here.clean_up()
        assert await here.in_public() == {"t"}


async def test_a_name_that_a_user_has_taken_in_the_database_is_refused(here: Here) -> None:
    await here.store.run("create view public.v as select 1 as mine")
    await refused(here, VIEW, Conflict, 'relation "v" already exists in schema public and is not tidefill\'s')
    assert await here.names() == []
    assert await here.clean_up()
    assert await here.store.rows("select * from public.v") == [(1,)]


async def test_what_postgres_says_it_reads_counts(here: Here) -> None:
    """The names told from its text are compared with what Postgres has bound."""
    with pytest.raises(Invalid, match="could not be told from its text: t"):
        await here.world.state_store.views.create(RelationId(77), "v", "SELECT id FROM t", reads=())
    with pytest.raises(Invalid, match="could not be told from its text: nothing"):
        await here.world.state_store.views.create(RelationId(77), "v", "SELECT 1 AS a", reads=("t",))
    assert await here.in_public() == {"t"}


async def test_d10_a_select_from_what_failed_or_reads_it_is_told_so(here: Here) -> None:
    await here.created(new_table("well"))
    await here.run(VIEW)
    assert (await here.run("SELECT * FROM v")).notices == ()
    async with here.stores.begin() as tx:
        entry = await tx.catalog.named("t")
        assert entry is not None
        await tx.jobs.move(entry.job, JobEvent.FAILED, now=NOW, error="division by zero")
    (said,) = (await here.run("SELECT * FROM v JOIN well USING (id)")).notices
    assert said.startswith('"v" is stale since ')
    assert 'it reads "t": division by zero' in said
    assert (await here.run("SELECT * FROM well")).notices == ()
    (said,) = (await here.run("SELECT * FROM t")).notices
    assert said.startswith('"t" is failed since ')


async def test_n11_views_that_double_are_refused_before_postgres_plans_them(here: Here) -> None:
    doubled = "CREATE VIEW e{} AS SELECT a.id FROM e{} a JOIN e{} b ON a.id = b.id"
    await here.run("CREATE VIEW e0 AS SELECT id FROM t UNION ALL SELECT id FROM t UNION ALL SELECT id FROM t")
    for number in range(1, 5):
        await here.run(doubled.format(number, number - 1, number - 1))
    message = (
        "the view reads 96 relations through the logical views in it, and may read 64:"
        " create a materialized view of one of them, and read that"
    )
    await refused(here, "CREATE VIEW e5 AS ^SELECT a.id FROM e4 a JOIN e4 b ON a.id = b.id", Invalid, message)
    assert "e5" not in await here.names()
    await here.run("CREATE VIEW e5 AS WITH one AS (SELECT id FROM e4) SELECT a.id FROM one a JOIN one b USING (id)")
    await here.run(f"CREATE VIEW wide AS {' UNION ALL '.join(['SELECT id FROM t'] * 65)}")
    await refused(here, "CREATE VIEW w AS ^SELECT * FROM wide", Invalid, "reads 65 relations")
