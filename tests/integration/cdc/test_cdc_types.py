"""Types that the owner of the external database made: they travel as text, and are no drift until they change."""

import psycopg
import pytest

from tests.support.cdc_steps import Started, finish
from tests.support.real_cdc import CdcWorld, Followed

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

MADE = (
    "create schema other",
    "create type mood as enum ('zz', 'it''s', 'a b,\"c\"')",
    "create type other.mood as enum ('far')",
    "create domain pos as integer check (value > 0)",
    "create domain short as varchar(9)",
    "create domain moods as mood[]",
    "create type pair as (a integer, b text)",
    "create type mine as range (subtype = double precision)",
)
COLUMNS = (
    ("mood", "text", ("zz", "it's", 'a b,"c"')),
    ("other.mood", "text", ("far",)),
    ("pos", "integer", ("1", "2147483647")),
    ("short", "text", ("", "nine char")),
    ("mood[]", "text[]", ('{zz,NULL,"a b,\\"c\\""}', "{}")),
    ("moods", "text[]", ("{zz}",)),
    ("pair", "text", ('(1,"a ""b""")', "(,)")),
    ("mine", "text", ("[1.5,2)", "empty")),
    ("int4range", "text", ("[1,5)",)),
    ("int4multirange", "text", ("{[1,3),[7,)}",)),
    ("inet", "text", ("10.0.0.1/8",)),
    ("pos[]", "text[]", ("{1,2}",)),
)
OWN = Followed(
    21,
    "own",
    (("id", "bigint"), *((f"c{n}", kept) for n, (_, kept, _) in enumerate(COLUMNS)), ("t", "text")),
    1,
    there=tuple((f"c{n}", kind) for n, (kind, _, _) in enumerate(COLUMNS)),
)
KEYED = Followed(22, "keyed", (("id", "integer"), ("t", "text")), 1, there=(("id", "pos"),))
EXTENSIONS = {"citext": ("Ab", "aB"), "hstore": ('"a"=>"1", "b c"=>NULL',)}


@pytest.fixture
def made(external_url: str) -> None:
    """Types in the schema that every login has on its path, and in one that none has."""
    with psycopg.connect(external_url, autocommit=True) as admin:
        for statement in MADE:
            admin.execute(statement.encode())


async def insert(world: CdcWorld, first: int, values: tuple[tuple[str, tuple[str, ...]], ...], name: str) -> None:
    places = ", ".join(f"%s::text::{kind}" for kind, _ in values)
    for number in range(first, first + 4):
        row = [None if number % 4 == 3 else texts[number % len(texts)] for _, texts in values]
        world.external.admin.execute(f"insert into {name} values ({number}, {places}, null)".encode(), row)


async def check_follows(world: CdcWorld, table: Followed, values: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    """History, inserts, updates with and without the column, deletes and moved keys all arrive."""
    world.model = False
    await insert(world, 0, values, table.name)
    await finish(world)
    assert world.broken == {}
    await insert(world, 100, values, table.name)
    for statement in (
        f"update {table.name} set t = 'touched' where id in (0, 100)",
        f"update {table.name} set c0 = null where id = 1",
        f"update {table.name} set id = 200 where id = 2",
        f"delete from {table.name} where id = 101",
    ):
        world.external.admin.execute(statement.encode())
        await world.epoch()
        assert world.broken == {}
    assert world.waiting is None
    names = ", ".join(f"{name}::text" for name, _ in table.columns)
    stored = f"select {names} from state.t_{table.number} t where _to > {world.committed} order by t.id"
    there = f"select {names} from {table.name} t order by t.id"
    assert await world.store.rows(stored) == world.external.admin.execute(there.encode()).fetchall()


@pytest.mark.usefixtures("made")
async def test_d1_values_of_types_of_the_owners_own_arrive_and_are_no_drift(started: Started) -> None:
    async with started(OWN) as world:
        await check_follows(world, OWN, tuple((kind, texts) for kind, _, texts in COLUMNS))
        # Another value of the type is no other type.
        world.external.admin.execute("alter type mood add value 'later'")
        world.external.admin.execute("insert into own (id, c0) values (300, 'later')")
        await world.epoch()
        assert world.broken == {}
        assert (await world.rows(OWN))[-1][:2] == (300, "later")
        # Nor is another rule for the values of a domain.
        world.external.admin.execute("alter domain pos drop constraint pos_check")
        world.external.admin.execute("insert into own (id, c2) values (301, -5)")
        await world.epoch()
        assert world.broken == {}
        assert (await world.rows(OWN))[-1][3] == -5


@pytest.mark.usefixtures("made")
async def test_d1_a_domain_is_a_key(started: Started) -> None:
    async with started(KEYED) as world:
        world.model = False
        admin = world.external.admin
        admin.execute("insert into keyed select i, repeat('x', 3000) from generate_series(1, 40) i")
        await world.epoch(world.throttled(5_000))
        for n in range(1, 8):
            admin.execute("update keyed set id = id + 1000 where id = %s", [n * 5])
            admin.execute("delete from keyed where id = %s", [n * 5 + 1])
            admin.execute("update keyed set t = t where id = %s", [n * 5 + 2])
            await world.epoch()
        await finish(world)
        assert world.broken == {}
        assert await world.rows(KEYED) == admin.execute("select id, t from keyed order by id").fetchall()


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("alter table own alter c0 type other.mood using 'far'", '"c0" is now of type other.mood, not public.mood'),
        ("alter table own alter c1 type mood using 'zz'", '"c1" is now of type public.mood, not other.mood'),
        ("alter table own alter c2 type integer", '"c2" is now of type integer, not public.pos'),
        ("alter type mood rename to humour", '"c0" is now of type public.humour, not public.mood'),
    ],
)
async def test_d1_a_type_that_changed_is_still_drift(started: Started, ddl: str, reason: str) -> None:
    async with started(OWN) as world:
        world.model = False
        world.external.admin.execute("insert into own (id, c2) values (1, 1)")
        await finish(world)
        world.external.admin.execute(ddl.encode())
        world.external.admin.execute("insert into own (id) values (2)")
        await world.epoch()
        assert reason in world.broken[OWN.fragment]


@pytest.mark.parametrize("schema", ["public", "apart"])
async def test_d1_types_of_extensions_arrive(started: Started, external_url: str, schema: str) -> None:
    with psycopg.connect(external_url, autocommit=True) as admin:
        admin.execute(f"create schema if not exists {schema}".encode())
        known = {name for (name,) in admin.execute("select name from pg_available_extensions").fetchall()}
        if missing := set(EXTENSIONS) - known:
            pytest.skip(f"the server has no {', '.join(sorted(missing))}: set TIDEFILL_TEST_EXTERNAL_PROGRAMS")
        for name in EXTENSIONS:
            admin.execute(f"create extension {name} schema {schema}".encode())
    kinds = [(f"{schema}.{name}", "text", texts) for name, texts in EXTENSIONS.items()]
    kinds += [(f"{schema}.{name}[]", "text[]", ("{}",)) for name in EXTENSIONS]
    table = Followed(
        23,
        "extended",
        (("id", "bigint"), *((f"c{n}", kept) for n, (_, kept, _) in enumerate(kinds)), ("t", "text")),
        1,
        there=tuple((f"c{n}", kind) for n, (kind, _, _) in enumerate(kinds)),
    )
    async with started(table) as world:
        await check_follows(world, table, tuple((kind, texts) for kind, _, texts in kinds))
