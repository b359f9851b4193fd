"""Tables that follow a live external Postgres (I1 with respect to it, I3, I4, I9), through the real API."""

import pytest

from tests.support.production import SLOT, External, source, until_backfilled, until_equal
from tests.support.service import Repeating, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

ITEMS = "create table items (id int primary key, name text, price numeric(10,2), at timestamptz, code char(5))"
FILL = (
    "insert into items select g, 'item ' || g, g / 4.0, timestamptz '2026-01-01' + g * interval '1 min', 'c' || g % 7"
    " from generate_series(1, {rows}) g"
)
CHANGES = (
    "insert into items select coalesce(max(id), 0) + 1, 'new', 1, now(), 'n' from items",
    "update items set price = price + 1 where id % 97 = (random() * 96)::int and id % 1000 <> 77",
    "update items set id = (select least(min(id), 0) - 1 from items) where id = (select max(id) from items)",
    "delete from items where id in (select id from items where id % 1000 <> 77 order by random() limit 3)",
)
"""Of keys that end in 077 nothing is changed."""


def follow(service: Service, external: External, rows: int, options: str = "") -> int:
    """Fill a table and let it be followed; return the job."""
    external.run(ITEMS, FILL.format(rows=rows))
    service.run(source(external))
    service.run(f"CREATE TABLE items (*) {options} FROM pg TABLE 'public.items'")
    return service.job("items")


def changing(external: External) -> Repeating:
    """Change the external table all the time, in transactions of several changes."""
    return Repeating(lambda _: external.run(*CHANGES))


def test_a_table_follows_and_a_view_is_built_on_it(service: Service, external: External) -> None:
    follow(service, external, 20_000)
    service.run("CREATE TABLE again (id int, price numeric(12,3), PRIMARY KEY (id)) FROM pg TABLE 'public.items'")
    with changing(external):
        service.run("CREATE MATERIALIZED VIEW cheap AS SELECT id, name, price FROM items WHERE price < 1000")
        until_backfilled(service, "items")
        until_backfilled(service, "again")
    until_equal(service, external, "items")
    assert service.sql("SELECT count(*), sum(price)::numeric(20,2)::text FROM again") == service.sql(
        "SELECT count(*), sum(price)::text FROM items"
    )
    service.assert_equal("cheap", "SELECT id, name, price FROM items WHERE price < 1000")
    assert external.slots() == [SLOT]
    assert external.published() == ["items"]
    external.run("truncate items")
    assert until_equal(service, external, "items") == []
    service.run("DROP TABLE items CASCADE")
    assert external.published() == ["items"], "the other one follows it still"
    service.run("DROP TABLE again")
    assert external.published() == []
    service.run("DROP SOURCE pg")
    assert external.slots() == []


@pytest.mark.soak
def test_a_limit_of_zero_reads_no_history(service: Service, external: External) -> None:
    """Scenario 18."""
    job = follow(service, external, 3, "WITH (backfill_rate_limit = 0)")
    service.flush()
    service.flush()
    assert service.value("SELECT count(*) FROM items") == 0
    service.run("ALTER TABLE items SET BACKFILL_RATE_LIMIT TO 1000")
    until_backfilled(service, "items")
    # It is told at the commit, and read once that is published.
    service.flush()
    assert service.value("SELECT count(*) FROM items") == 3
    assert service.rows(job) == 3


@pytest.mark.soak
@pytest.mark.parametrize(
    "options",
    [
        pytest.param("", id="v1"),
        pytest.param("backfill.parallelism = 2, backfill.num_rows_per_split = 3000, ", id="v2"),
    ],
)
def test_kills_lose_nothing(service: Service, external: External, options: str) -> None:
    """Scenarios 45 and 75: the worker is killed and the external server restarted in the middle of the history."""
    job = follow(service, external, 20_000, f"WITH ({options}backfill_rate_limit = 300)")
    with changing(external) as changes:
        rows = service.until_rows(job, 0)
        generation = service.graph()["generation"]
        service.kill_worker()
        service.until_recovered(generation)
        rows = service.until_rows(job, rows)
        service.mutate({"type": "pause"})
        held, turns = service.rows(job), changes.turns
        until(lambda: changes.turns > turns + 5, what="the table goes on changing")
        service.flush()
        assert service.rows(job) == held
        service.mutate({"type": "resume"})
        service.until_rows(job, rows)
    external.stop()
    assert service.flush(), "barriers go on while the external server is away"
    external.start()
    with changing(external):
        service.run("ALTER TABLE items SET BACKFILL_RATE_LIMIT TO DEFAULT")
        until_backfilled(service, "items")
    until_equal(service, external, "items")


@pytest.mark.soak
def test_what_is_dropped_while_the_server_is_away_is_removed_later(service: Service, external: External) -> None:
    """I9."""
    follow(service, external, 100)
    until_backfilled(service, "items")
    external.stop()
    try:
        service.run("DROP TABLE items")
        service.run("DROP SOURCE pg")
    finally:
        external.start()
    until(lambda: not external.slots() and not external.published(), what=lambda: f"left: {external.slots()}")


@pytest.mark.soak
def test_a_comparison_names_the_keys_that_truly_differ(service: Service, external: External) -> None:
    """While both change: what is only late is not named."""
    follow(service, external, 60_000)
    until_backfilled(service, "items")
    job = service.job("items")
    with changing(external):
        assert service.post(f"/v1/jobs/{job}/verify")["equal"]
    relation = service.get("/v1/relations/items")["id"]
    with service.store() as store:
        store.execute(f"update state.t_{relation} set name = 'other' where id = 77 and _to > 9e18".encode())
        store.execute(f"delete from state.t_{relation} where id = 50077".encode())
        store.execute(
            f"insert into state.t_{relation} (_vnode, id, name, _from)"
            f" select _vnode, 700077, 'more', _from from state.t_{relation} where id = 78".encode()
        )
    with changing(external):
        found = service.post(f"/v1/jobs/{job}/verify")
    assert not found["equal"]
    named = {
        kind: [key for one in found["differences"] for key in one[kind]] for kind in ("missing", "extra", "unequal")
    }
    assert named == {"missing": [["50077"]], "extra": [["700077"]], "unequal": [["77"]]}


@pytest.mark.soak
def test_d1_types_of_the_owners_own_follow_through_views(service: Service, external: External) -> None:
    """Enums on and beside the login's path, a domain, arrays: history, changes, and what is computed of them."""
    external.run(
        "create type mood as enum ('sad', 'glad')",
        "drop schema if exists apart cascade",
        "create schema apart",
        "create type apart.mood as enum ('far')",
        "create domain pos as int check (value > 0)",
        "create table moods (id int primary key, m mood, o apart.mood, p pos, ms mood[])",
        "insert into moods select g, case when g % 2 = 0 then 'sad' else 'glad' end::mood, 'far', g, '{sad,glad}'"
        " from generate_series(1, 200) g",
    )
    service.run(source(external))
    service.run("CREATE TABLE moods (*) FROM pg TABLE 'public.moods'")
    query = "SELECT id, m = 'glad' AS happy, m || '/' || o AS both, p + 1 AS next, ms FROM moods WHERE m <> 'none'"
    service.run(f"CREATE MATERIALIZED VIEW happy AS {query}")
    until_backfilled(service, "moods")
    until_equal(service, external, "moods")
    for change in (
        "insert into moods values (201, 'glad', 'far', 7, array['glad']::mood[]), (202, null, null, null, null)",
        "update moods set m = 'glad', ms = null where id % 10 = 0",
        "update moods set p = p + 1 where id = 5",
        "delete from moods where id < 4",
        "alter type mood add value 'fair'",
        "insert into moods values (203, 'fair', 'far', 1, '{fair,NULL}')",
    ):
        external.run(change)
        until_equal(service, external, "moods")
    service.assert_equal("happy", query)
    for name in ("moods", "happy"):
        assert service.post(f"/v1/jobs/{name}/verify")["equal"]
        assert service.get(f"/v1/jobs/{name}")["job"]["broken"] is None
    # A type of the same name in another schema is another type.
    external.run(
        "alter table moods alter m type apart.mood using 'far'",
        "insert into moods values (204, 'far', 'far', 1, null)",
    )
    until(lambda: service.get("/v1/jobs/moods")["job"]["broken"], what="the table breaks")
    broken = service.get("/v1/jobs/moods")["job"]["broken"]
    assert (broken["state"], broken["because_of"]) == ("broken", None)
    assert 'column "m" is now of type apart.mood, not public.mood' in broken["reason"]
    stale = service.get("/v1/jobs/happy")["job"]["broken"]
    assert (stale["state"], stale["because_of"]) == ("stale", "moods")
    assert stale["since"] == broken["since"] is not None
    ready = service.get("/readyz")
    assert (ready["status"], ready["degraded"]) == ("ok", {"moods": "broken", "happy": "stale"})
    (notice,) = service.run("SELECT count(*) FROM happy")["notices"]
    assert 'it reads "moods"' in notice
    external.run("drop schema apart cascade")
