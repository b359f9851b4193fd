"""F6: a followed table that broke is read again in place, over Spark, while views go on and its worker is killed."""

import pytest

from tests.support.production import External, source, until_backfilled
from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

ROWS = 3_000
QUERY = "SELECT k % 7 AS g, count(*) AS n, sum(v) AS s FROM r GROUP BY k % 7"


@pytest.mark.soak
def test_f6_views_follow_a_table_that_is_read_again(service: Service, external: External) -> None:
    fill = f"insert into r select g, g, 'row ' || g from generate_series(1, {ROWS}) g"
    external.run("create table r (k int primary key, v bigint, t text)", fill, "analyze r")
    service.run(source(external))
    split = "backfill.parallelism = 2, backfill.num_rows_per_split = 500"
    service.run(f"CREATE TABLE r (*) WITH ({split}) FROM pg TABLE 'r'")
    until_backfilled(service, "r")
    service.run(f"CREATE MATERIALIZED VIEW groups AS {QUERY}")
    service.run("CREATE MATERIALIZED VIEW long AS SELECT k, t FROM r WHERE v > 2000")
    external.run("alter table r alter v type bigint using case when k % 10 = 0 then v + 1000 else v end")
    until(lambda: _state(service) == "broken", what="the rewrite is noticed")
    (found,) = service.get("/v1/sources/pg")["tables"]
    cause, remedy = found["reason"].split(": ")
    assert cause == 'the values of its column "v" were rewritten by an ALTER TABLE'
    assert remedy == "ALTER TABLE r RELOAD reads it again"
    external.run(
        "delete from r where k % 100 = 1", "insert into r select g, g, 'new' from generate_series(9001, 9050) g"
    )
    service.run("ALTER TABLE r SET BACKFILL_RATE_LIMIT TO 400")
    service.run("ALTER TABLE r RELOAD")
    assert _state(service) == "backfilling"
    for _ in range(2):
        generation = service.graph()["generation"]
        service.kill_worker()
        service.until_recovered(generation)
        service.flush()
        assert sorted(service.sql("SELECT * FROM groups")) == sorted(service.sql(QUERY))
    external.run("update r set v = v + 1 where k < 50")
    service.run("ALTER TABLE r SET BACKFILL_RATE_LIMIT TO DEFAULT")
    service.run("WAIT TABLE r")
    service.flush()
    until(lambda: _state(service) == "following", what="the table follows again")
    expected = [list(row) for row in external.rows("select k, v, t from r order by k")]
    until(lambda: [list(row) for row in service.sql("SELECT k, v, t FROM r ORDER BY k")] == expected, what="the rows")
    assert sorted(service.sql("SELECT * FROM groups")) == sorted(service.sql(QUERY))
    assert sorted(service.sql("SELECT k, t FROM long")) == sorted(service.sql("SELECT k, t FROM r WHERE v > 2000"))


@pytest.mark.soak
def test_f6_a_new_column_is_taken_up_by_itself(service: Service, external: External) -> None:
    external.run(
        "create table r (k int primary key, v bigint)", "insert into r select g, g from generate_series(1, 500) g"
    )
    service.run(source(external))
    service.run("CREATE TABLE r (*) FROM pg TABLE 'r'")
    until_backfilled(service, "r")
    service.run("CREATE MATERIALIZED VIEW old AS SELECT * FROM r WHERE v > 400")
    external.run(
        "begin; alter table r add column c int; update r set c = 1, v = 1000 where k = 7; commit",
        "alter table r add column d text not null default 'given'",
        "insert into r values (501, 501, 2, 'own')",
    )

    def rows(columns: str) -> bool:
        expected = [list(row) for row in external.rows(f"select {columns} from r order by k")]
        return [list(row) for row in service.sql(f"SELECT {columns} FROM r ORDER BY k")] == expected

    until(lambda: rows("k, v"), what="the known columns, at once")
    until(lambda: len(service.sql("SELECT * FROM r WHERE k = 1")[0]) == 4, what="the new columns")
    external.run("update r set c = 3 where k = 8")
    until(lambda: rows("k, v, c, d"), what="all values")
    until(lambda: _state(service) == "following", what="the table follows again")
    service.run("CREATE MATERIALIZED VIEW new AS SELECT c, count(*) AS n FROM r GROUP BY c")
    assert sorted(service.sql("SELECT n FROM new")) == [[1], [1], [1], [498]]
    assert len(service.sql("SELECT * FROM old WHERE k = 7")[0]) == 2
    external.run("update r set c = 3 where k = 9")
    until(lambda: rows("k, v, c, d"), what="what is changed afterwards")
    assert service.get("/v1/sources/pg")["tables"][0]["note"] is None


def _state(service: Service) -> str:
    (found,) = service.get("/v1/sources/pg")["tables"]
    return str(found["state"])
