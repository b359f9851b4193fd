"""What people type first, as scripts in the manner of RisingWave's: each statement with its answer, over HTTP."""

from typing import Final

import pytest

from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

Rows = list[list[object]]

TABLES: Final[list[tuple[str, Rows | str]]] = [
    (
        (
            "CREATE TABLE people (id int PRIMARY KEY, name varchar(5), city character varying (10) DEFAULT 'Oslo',"
            " n int NOT NULL DEFAULT -1, at timestamp DEFAULT '2020-01-01', total numeric)"
        ),
        "CREATE_TABLE",
    ),
    ("INSERT INTO people (id, name) VALUES (1, 'Ann')", "INSERT 0 1"),
    (
        "INSERT INTO people VALUES (2, 'Bob', DEFAULT, 7, DEFAULT, 12345678901234567890123456789012345678901234567.5)",
        "",
    ),
    ("INSERT INTO people (id, n) SELECT g, g FROM generate_series(3, 4) g", "INSERT 0 2"),
    ("UPDATE people SET city = NULL, n = DEFAULT WHERE id = 4", "UPDATE 1"),
    (
        "SELECT id, name, city, n, at::text, total::text FROM people ORDER BY id",
        [
            [1, "Ann", "Oslo", -1, "2020-01-01 00:00:00", None],
            [2, "Bob", "Oslo", 7, "2020-01-01 00:00:00", "12345678901234567890123456789012345678901234567.5"],
            [3, None, "Oslo", 3, "2020-01-01 00:00:00", None],
            [4, None, None, -1, "2020-01-01 00:00:00", None],
        ],
    ),
    (
        "INSERT INTO people (id, name) VALUES (5, 'Eleanor')",
        '!column "name": value too long for type character varying(5)',
    ),
    ("UPDATE people SET name = 'Eleanor' WHERE id = 1", "!value too long for type character varying(5)"),
    ("INSERT INTO people (id, name) SELECT 5, 'Eleanor'", "!value too long for type character varying(5)"),
    ("INSERT INTO people (id, total) VALUES (5, 'NaN')", "!NaN and infinity cannot be kept"),
    ("INSERT INTO people (id, n) VALUES (5, NULL)", '!null value in column "n"'),
    ("CREATE TABLE bad (id int PRIMARY KEY, n int DEFAULT 'x')", "!invalid input syntax for type integer"),
    ("CREATE MATERIALIZED VIEW sums AS SELECT city, sum(total) AS total, count(*) AS n FROM people GROUP BY city", ""),
    ("TRUNCATE people", "TRUNCATE_TABLE"),
    ("SELECT count(*) FROM people", [[0]]),
    ("SELECT count(*) FROM sums", [[0]]),
]

VIEWS: Final[list[tuple[str, Rows | str]]] = [
    ("CREATE TABLE t (id int PRIMARY KEY, k int, v int)", ""),
    ("CREATE TABLE u (id int PRIMARY KEY, k int)", ""),
    ("INSERT INTO t VALUES (1, 1, 10), (2, 1, 20), (3, 2, 30), (4, NULL, 40)", ""),
    ("INSERT INTO u VALUES (1, 1)", ""),
    ("CREATE MATERIALIZED VIEW named (a, b) AS SELECT t.id, u.id FROM t JOIN u ON u.k = t.k", ""),
    ("SELECT a, b FROM named ORDER BY a", [[1, 1], [2, 1]]),
    ("CREATE MATERIALIZED VIEW plain (number) AS SELECT id, v FROM t WHERE v > 20", ""),
    ("SELECT number, v FROM plain ORDER BY 1", [[3, 30], [4, 40]]),
    ('CREATE VIEW shown (a, "B") AS SELECT id, v, k FROM t UNION ALL SELECT id + 10, 0, k FROM t', "CREATE_VIEW"),
    ('SELECT a, "B", k FROM shown WHERE a IN (1, 11) ORDER BY a', [[1, 10, 1], [11, 0, 1]]),
    ('CREATE MATERIALIZED VIEW inlined AS SELECT a + 1 AS next, "B" FROM shown WHERE a > 13', ""),
    ("SELECT * FROM inlined", [[15, 0]]),
    ('CREATE MATERIALIZED VIEW counted AS SELECT k, max(a) AS a, sum("B") AS b FROM shown GROUP BY k', ""),
    ("SELECT k, a, b FROM counted WHERE k = 1", [[1, 12, 30]]),
    ("DROP VIEW shown CASCADE", ""),
    ("CREATE MATERIALIZED VIEW others AS SELECT id FROM t WHERE k NOT IN (SELECT k FROM u)", ""),
    ("SELECT id FROM others ORDER BY id", [[3]]),
    ("INSERT INTO u VALUES (2, NULL)", ""),
    ("SELECT id FROM others ORDER BY id", []),
    ("DELETE FROM u WHERE id IN (1, 2)", "DELETE 2"),
    ("SELECT id FROM others ORDER BY id", [[1], [2], [3], [4]]),
    (
        (
            "CREATE MATERIALIZED VIEW last AS SELECT id, last_value(v) OVER (PARTITION BY k ORDER BY id) AS l,"
            " nth_value(v, 2) OVER (PARTITION BY k ORDER BY id) AS second FROM t"
        ),
        "",
    ),
    ("SELECT id, l, second FROM last ORDER BY id", [[1, 10, None], [2, 20, 20], [3, 30, None], [4, 40, None]]),
    (
        (
            "CREATE MATERIALIZED VIEW ordered WITH (backfill_order = FIXED(u -> t)) AS"
            " SELECT t.id, u.id AS u FROM t JOIN u ON u.k = t.k"
        ),
        "",
    ),
]


CONSTANTS: Final[list[tuple[str, Rows | str]]] = [
    ("CREATE MATERIALIZED VIEW one AS SELECT 1 AS a, 'x' AS b, 2.50 AS c", "CREATE_MATERIALIZED_VIEW"),
    ("SELECT a, b, c::text FROM one", [[1, "x", "2.50"]]),
    ("CREATE MATERIALIZED VIEW two AS VALUES (1, 'x'), (2, NULL), (2, NULL)", ""),
    ("SELECT * FROM two ORDER BY 1", [[1, "x"], [2, None], [2, None]]),
    ("CREATE MATERIALIZED VIEW three (n) AS SELECT * FROM (VALUES (1, true), (2, false)) AS t (a, b)", ""),
    ("SELECT n, b FROM three ORDER BY n", [[1, True], [2, False]]),
    ("CREATE MATERIALIZED VIEW numbers AS SELECT g, g * g AS square FROM generate_series(1, 9999) g", ""),
    ("SELECT count(*), sum(square) FROM numbers", [[9999, 333283335000]]),
    ("CREATE MATERIALIZED VIEW none AS SELECT 1 AS a WHERE false", ""),
    ("SELECT * FROM none", []),
    ("CREATE TABLE t (id int PRIMARY KEY, k int)", ""),
    ("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)", ""),
    ("CREATE MATERIALIZED VIEW joined AS SELECT t.id, two.column2 AS name FROM t JOIN two ON two.column1 = t.k", ""),
    ("SELECT id, name FROM joined ORDER BY id", [[1, "x"], [2, None], [2, None]]),
    ("INSERT INTO t VALUES (4, 1)", ""),
    ("SELECT id FROM joined WHERE name = 'x' ORDER BY id", [[1], [4]]),
    ("CREATE MATERIALIZED VIEW added AS SELECT a FROM one UNION ALL SELECT n FROM three", ""),
    ("SELECT a FROM added ORDER BY a", [[1], [1], [2]]),
    ("INSERT INTO one VALUES (2)", '!cannot change materialized view "one"'),
    ("EXPLAIN CREATE MATERIALIZED VIEW four AS SELECT 1 AS a", [["ConstantRows: a, written once"]]),
    ("CREATE MATERIALIZED VIEW bad AS SELECT now()", "!now depends on the time of the statement"),
    ("CREATE MATERIALIZED VIEW bad AS SELECT random()", "!function random gives another value at each call"),
    ("CREATE MATERIALIZED VIEW bad AS SELECT pg_backend_pid()", "!function pg_backend_pid is not allowed here"),
    ("CREATE MATERIALIZED VIEW bad AS SELECT 1 / 0", "!division by zero"),
    ("CREATE MATERIALIZED VIEW bad AS SELECT 'infinity'::date AS d", '!column "d": infinity cannot be kept'),
    ("CREATE MATERIALIZED VIEW bad AS SELECT 1 AS a, 2 AS a", '!column "a" specified more than once'),
    ("CREATE MATERIALIZED VIEW bad AS SELECT generate_series(1, 10001)", "!has at most 10000 rows"),
    ("CREATE MATERIALIZED VIEW bad AS SELECT 1 AS a UNION ALL SELECT id FROM t", "!FROM is missing"),
    (
        "CREATE MATERIALIZED VIEW bad AS SELECT t.id FROM t JOIN (VALUES (1)) AS x (a) ON x.a = t.k",
        "!a materialized view of their own",
    ),
]


@pytest.mark.soak
def test_u11_a_view_without_from_has_its_rows_from_its_first_epoch(service: Service) -> None:
    """Also while every backfill is paused, because a constant is no history."""
    _play(service, CONSTANTS)
    service.mutate({"type": "pause"})
    values = "VALUES (1, 1.5::float8, ARRAY[1, 2], '{\"a\": 1}'::jsonb)"
    service.run(f"CREATE MATERIALIZED VIEW checked AS {values}")
    assert service.sql("SELECT * FROM checked") == service.sql(values)
    assert service.verified("checked")["equal"]
    generation = service.graph()["generation"]
    service.kill_worker()
    service.until_recovered(generation)
    assert service.sql("SELECT * FROM checked") == service.sql(values)


ALTERED: Final[list[tuple[str, Rows | str]]] = [
    ("CREATE TABLE t (id int PRIMARY KEY, k int)", ""),
    ("CREATE TABLE keyless (v int)", ""),
    ("INSERT INTO t VALUES (1, 1), (2, 1), (3, 2)", ""),
    ("INSERT INTO keyless VALUES (10), (20)", ""),
    ("CREATE MATERIALIZED VIEW star AS SELECT * FROM t WHERE id > 0", ""),
    ("CREATE MATERIALIZED VIEW grouped AS SELECT * FROM (SELECT * FROM t) q JOIN keyless ON v = k * 10", ""),
    ("ALTER TABLE t ADD COLUMN c numeric(10, 1)", "ALTER_TABLE"),
    ("ALTER TABLE keyless ADD d varchar(5) DEFAULT 'x'", "ALTER_TABLE"),
    ("SELECT * FROM t ORDER BY id", [[1, 1, None], [2, 1, None], [3, 2, None]]),
    ("SELECT v, d FROM keyless ORDER BY v", [[10, "x"], [20, "x"]]),
    ("INSERT INTO t VALUES (4, 2, 1.5), (5, 3, 2.5)", "INSERT 0 2"),
    ("INSERT INTO t (id, k) SELECT g, 3 FROM generate_series(6, 7) g", "INSERT 0 2"),
    ("INSERT INTO keyless (v) VALUES (30)", "INSERT 0 1"),
    ("INSERT INTO keyless VALUES (40, 'toolong')", '!column "d": value too long'),
    ("INSERT INTO t VALUES (8, 3, 'NaN')", "!NaN cannot be kept"),
    ("UPDATE t SET c = id WHERE id IN (1, 5)", "UPDATE 2"),
    ("UPDATE t SET k = 9 WHERE id = 4", "UPDATE 1"),
    ("DELETE FROM t WHERE c IS NULL AND id = 7", "DELETE 1"),
    (
        "SELECT id, k, c::text FROM t ORDER BY id",
        [[1, 1, "1.0"], [2, 1, None], [3, 2, None], [4, 9, "1.5"], [5, 3, "5.0"], [6, 3, None]],
    ),
    ("SELECT * FROM star ORDER BY id", [[1, 1], [2, 1], [3, 2], [4, 9], [5, 3], [6, 3]]),
    ("CREATE MATERIALIZED VIEW plain AS SELECT id, c FROM t WHERE c IS NULL OR c > 1", ""),
    ("CREATE MATERIALIZED VIEW sums AS SELECT c, count(*) AS n, sum(k) AS k FROM t GROUP BY c", ""),
    ("CREATE MATERIALIZED VIEW joined AS SELECT id, c, d FROM t JOIN keyless ON v = k * 10", ""),
    ("INSERT INTO t VALUES (9, 3, 1.5)", ""),
    ("SELECT c::text, n, k FROM sums ORDER BY 1", [["1.0", 1, 1], ["1.5", 2, 12], ["5.0", 1, 3], [None, 3, 6]]),
    ("SELECT id, c::text, d FROM joined WHERE id > 4 ORDER BY id", [[5, "5.0", "x"], [6, None, "x"], [9, "1.5", "x"]]),
    (
        "SHOW CREATE TABLE t",
        [["public.t", "CREATE TABLE t (id int PRIMARY KEY, k int);\nALTER TABLE t ADD COLUMN c numeric(10, 1)"]],
    ),
    ("CREATE TABLE made (id int PRIMARY KEY) WITH (connector = 'datagen')", ""),
    ("ALTER TABLE made ADD COLUMN c int", '!cannot add a column to "made", which is filled by its connector'),
    ("ALTER TABLE star ADD COLUMN c int", '!"star" is not a table; it is a materialized view'),
    ("ALTER TABLE nope ADD COLUMN c int", '!table "nope" does not exist'),
    ("ALTER TABLE t ADD COLUMN e int DEFAULT 'x'", "!invalid input syntax for type integer"),
    ("DROP TABLE made", ""),
]


FOLLOWED: Final = ("star", "grouped", "plain", "sums", "joined")


def test_u11_a_column_is_added_to_a_table_that_views_read(service: Service) -> None:
    _play(service, ALTERED)
    for view in FOLLOWED:
        service.verified(view)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["spark", "store"])
def test_u11_an_added_column_outlives_a_kill(service: Service, engine: str) -> None:
    service.session = {"stage_engine": engine}
    _play(service, ALTERED)
    for view in FOLLOWED:
        service.verified(view)
    generation = service.graph()["generation"]
    service.kill_worker()
    service.until_recovered(generation)
    service.run("INSERT INTO t VALUES (10, 1, 7), (1, 2, 8)")
    service.run("UPDATE keyless SET d = 'y' WHERE v = 10")
    for view in FOLLOWED:
        service.verified(view)
    assert service.sql("SELECT d FROM joined WHERE id = 10") == [["y"]]


@pytest.mark.soak
def test_u11_a_column_is_added_while_a_load_runs(service: Service) -> None:
    """The rows that come afterwards have the default too, and what is changed meanwhile stays."""
    service.run("CREATE TABLE t (id int PRIMARY KEY, k int)")
    service.run("INSERT INTO t VALUES (1, 1)")
    load = service.later("INSERT INTO t (id, k) SELECT g, 1 FROM generate_series(2, 600000) g")
    until(lambda: service.items("/v1/staged-statements") or None, what=service.log_tail)
    service.run("ALTER TABLE t ADD COLUMN c int DEFAULT 4")
    service.run("UPDATE t SET c = 9 WHERE id = 1")
    assert load.result()["tag"] == "INSERT 0 599999"
    assert service.sql("SELECT c, count(*) FROM t GROUP BY c ORDER BY c") == [[4, 599999], [9, 1]]


@pytest.mark.parametrize("script", [TABLES, VIEWS], ids=["tables", "views"])
def test_u11_what_people_type_first_is_taken(service: Service, script: list[tuple[str, Rows | str]]) -> None:
    _play(service, script)


def _play(service: Service, script: list[tuple[str, Rows | str]]) -> None:
    for text, expected in script:
        if isinstance(expected, str) and expected.startswith("!"):
            assert expected[1:] in str(service.refused(text).problem["detail"]), text
            continue
        answer = service.run(text)
        if isinstance(expected, list):
            assert answer["rows"] == expected, text
        elif expected:
            assert answer["tag"] == expected, text
