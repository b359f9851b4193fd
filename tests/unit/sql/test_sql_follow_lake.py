"""CREATE TABLE .. USING delta .. FROM: the clauses of a followed table whose rows lie in a Delta table."""

import pytest

from service.domain.errors import Invalid
from service.sql.parse import parse
from service.sql.statements.follow import CreateTableFrom


def test_clauses_come_in_any_order_and_say_where_the_rows_lie() -> None:
    one = parse(
        "CREATE TABLE t (*) USING delta LOCATION '/lake/t' PARTITIONED BY (a, b)"
        " WITH (commit_interval = '1 s', backfill_rate_limit = 5, s3.secret.key = secret k) FROM shop TABLE 'x.t'"
    )
    other = parse(
        "CREATE TABLE t (*) FROM shop TABLE 'x.t' WITH (location = '/lake/t', partition_by = 'a, b',"
        " commit_interval = '1 s', backfill_rate_limit = 5, s3.secret.key = secret k) USING delta"
    )
    for statement in (one, other):
        assert isinstance(statement, CreateTableFrom)
        assert statement.target is not None
        assert dict(statement.target.options) == {
            "connector": "deltalake",
            "location": "/lake/t",
            "partition_by": "a, b",
            "commit_interval": "1 s",
        }
        assert dict(statement.target.secrets) == {"s3.secret.key": "k"}
        assert (statement.backfill_rate_limit, statement.source, statement.external_table) == (5, "shop", "t")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("CREATE TABLE t (*) USING iceberg FROM s TABLE 't'", "a table is USING delta, or without USING in Postgres"),
        ("CREATE TABLE t (*) FROM s TABLE 't' WITH (location = '/l')", "unexpected options in WITH clause"),
        ("CREATE TABLE t (*) USING delta LOCATION '/l' FROM s TABLE 't' WITH (location = '/m')", "Duplicated option"),
        ("CREATE TABLE t (*) USING delta FROM s TABLE 't' WITH (type = 'upsert')", "type"),
        ("CREATE TABLE t (*) USING delta LOCATION '/l' FROM s TABLE 't' USING delta", "syntax error"),
        (
            "CREATE TABLE t (*) USING delta LOCATION '/l' FROM s TABLE 't' WITH (s3.secret.key = 'sesame')",
            "no text|given",
        ),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as caught:
        parse(text)
    assert "sesame" not in str(caught.value)
