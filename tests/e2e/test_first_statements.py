"""What people type first, as scripts in the manner of RisingWave's: each statement with its answer, over HTTP."""

from typing import Final

import pytest

from tests.support.service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

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


@pytest.mark.parametrize("script", [TABLES, VIEWS], ids=["tables", "views"])
def test_u11_what_people_type_first_is_taken(service: Service, script: list[tuple[str, Rows | str]]) -> None:
    for text, expected in script:
        if isinstance(expected, str) and expected.startswith("!"):
            assert expected[1:] in str(service.refused(text).problem["detail"]), text
            continue
        answer = service.run(text)
        if isinstance(expected, list):
            assert answer["rows"] == expected, text
        elif expected:
            assert answer["tag"] == expected, text
