"""A refusal names what is not there, and the way out."""

import pytest

from service.domain.errors import Invalid
from service.sql.parse import parse

KAFKA = "with (connector = 'kafka', topic = 't', properties.bootstrap.server = 'b') format plain encode json"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (f"create source s {KAFKA}", 'connector "kafka" is not supported: there is postgres-cdc'),
        (f"create source s (id int, primary key (id)) {KAFKA}", 'connector "kafka" is not supported'),
        ("create source s with (connector = 'mysql-cdc', hostname = 'h')", 'connector "mysql-cdc" is not supported'),
        (
            f"create table t (id int) include key {KAFKA}",
            'connector "kafka" is not supported here: it is one of datagen',
        ),
        (f"create sink s from t {KAFKA}", 'connector "kafka" is not supported here: it is one of blackhole'),
    ],
)
def test_u8_the_connector_is_refused_before_its_options(sql: str, said: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(sql)
    assert refused.value.message.startswith(said)
    assert sql[(refused.value.position or 0) - 1 :].startswith(("'kafka'", "'mysql-cdc'"))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("create or replace materialized view v as select 1", "CREATE OR REPLACE is not supported: DROP it"),
        ("create table t (id bigserial primary key)", "bigserial is not supported: declare bigint"),
        ("create table t (id serial)", "serial is not supported: declare integer"),
        ("begin", "BEGIN is not supported: each statement is a transaction of its own"),
        ("copy t from 'x'", "COPY is not supported: tidefill load"),
        ("grant select on t to x", "GRANT is not supported: what a caller may do is its token's role"),
        ("create schema s", "CREATE SCHEMA is not supported: every relation is in the schema public"),
        ("create temporary table t (id int)", "CREATE TEMPORARY is not supported: use WITH"),
        (
            "alter table t rename to u",
            "ALTER TABLE .. RENAME is not supported: a view has the other name: CREATE VIEW new_name AS SELECT .. FROM",
        ),
        ("alter table t rename column a to b", "ALTER TABLE .. RENAME is not supported: a view has the other name"),
        ("alter materialized view m rename to n", "ALTER MATERIALIZED VIEW .. RENAME is not supported: a view has"),
        ("alter view v rename to w", "ALTER VIEW .. RENAME is not supported: a view has the other name"),
        ("alter table t drop column a", "ALTER TABLE .. DROP is not supported: a view leaves the column out"),
        ("alter table t alter column a type text", "ALTER TABLE .. ALTER is not supported: create a table of"),
        ("alter materialized view m add column a int", "ALTER MATERIALIZED VIEW .. ADD is not supported: its columns"),
        ("alter view v set (x = 1)", "ALTER VIEW .. SET is not supported: DROP it and CREATE it again"),
        ("alter table t add column a int not null", "a column that is added is in no key and takes NULL"),
        ("alter table t add a int primary key", "a column that is added is in no key and takes NULL"),
        ("alter table t add column a int, add column b int", "ALTER TABLE adds one column"),
        ("alter table t add constraint c check (a > 0)", "named constraints are not supported"),
        ("alter table t add column _from int", 'column name "_from" is reserved'),
    ],
)
def test_u11_a_refusal_has_the_way_out(sql: str, said: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(sql)
    assert refused.value.message.startswith(said)


@pytest.mark.parametrize("function", ["TUMBLE", "hop"])
def test_u12_windows_in_from_are_refused_by_name(function: str) -> None:
    sql = f"create materialized view v as select * from {function}(bid, ts, interval '10 s')"
    with pytest.raises(Invalid) as refused:
        parse(sql)
    assert refused.value.message.startswith(f"{function.upper()} is not supported: group by date_bin")
    assert (refused.value.position or 0) - 1 == sql.index(function)
    parse("create materialized view v as select hop(1) as h from t")
