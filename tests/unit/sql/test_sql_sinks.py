"""CREATE SINK, and the options of a table with a connector."""

import pytest

from service.domain.errors import Invalid
from service.sql.parse import parse
from service.sql.statements.sinks import CreateSink
from service.sql.statements.tables import CreateTable
from service.sql.statements.views import CreateMaterializedView


def sink(text: str) -> CreateSink:
    statement = parse(text)
    assert isinstance(statement, CreateSink)
    return statement


def test_a_sink_of_a_relation_takes_all_its_columns() -> None:
    made = sink("create sink if not exists S from public.\"T t\" with (connector = blackhole, type = 'upsert')")
    assert (made.query.name, made.query.if_not_exists, made.query.sql) == ("s", True, 'select * from public."T t"')
    assert made.target.options == {"connector": "blackhole", "type": "upsert"}


def test_a_sink_of_a_query_ends_it_at_the_last_with() -> None:
    text = "create sink s as select id from (select id from t where v in (1, 2)) q with (connector='blackhole')"
    made = sink(text)
    assert made.query.sql == "select id from (select id from t where v in (1, 2)) q"
    assert made.query.text == text


def test_the_limit_is_of_the_job_not_of_the_connector() -> None:
    made = sink("create sink s from t with (connector = 'blackhole', backfill_rate_limit = 5)")
    assert (made.query.limited, made.query.backfill_rate_limit) == (True, 5)
    assert made.target.options == {"connector": "blackhole"}


LAKE = "connector = 'deltalake', location = 's3://b/t', s3.access.key = 'writer'"


def test_a_secret_of_a_sink_is_its_name() -> None:
    made = sink(f"create sink s from t with ({LAKE}, s3.secret.key = secret Lake_Key)")
    assert made.target.secrets == {"s3.secret.key": "lake_key"}
    assert "s3.secret.key" not in made.target.options
    assert made.target.options["s3.access.key"] == "writer"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (f"{LAKE}, s3.secret.key = 'to be hidden'", "s3.secret.key = secret name"),
        (f"{LAKE}, s3.secret.key = 'to be hidden' 'more'", 'option "s3.secret.key" takes a text'),
        (f"{LAKE}, s3.secret.key 'to be hidden'", "syntax error"),
        (f"{LAKE}, s3.secret.key = secret k) 'to be hidden'", "syntax error"),
        (f"{LAKE}, location = 'x', s3.secret.key = 'to be hidden'", "Duplicated option"),
        (f"{LAKE}, s3.region = secret k", 'option "s3.region" is no secret'),
        ("connector = 'blackhole', type = secret k", 'option "type" is no secret'),
    ],
)
def test_a_secret_in_plain_text_is_refused_and_not_shown(options: str, reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(f"create sink s from t with ({options})")
    assert reason in refused.value.message
    assert "hidden" not in refused.value.message
    assert refused.value.position is not None


@pytest.mark.parametrize(
    "text",
    [
        "create sink s",
        "create sink s from",
        "create sink s from t",
        "create sink s from t with ()",
        "create sink s from t with (connector = 'x') more",
        "create sink s as with (connector = 'x')",
        "create sink s as select 1",
        "create sink s as select * from t with",
        "create sink s as select * from t with (connector = 'x'",
    ],
)
def test_what_is_no_sink_is_refused_at_its_place(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(text)
    assert refused.value.position is not None


def test_a_table_keeps_the_options_of_its_connector() -> None:
    table = parse(
        "create table t (id int primary key) with (connector = 'datagen', vnode_count = 4, fields.id.min = 1)"
    )
    assert isinstance(table, CreateTable)
    assert table.vnode_count == 4
    assert table.options == {"connector": "datagen", "fields.id.min": "1"}


def view(text: str) -> CreateMaterializedView:
    statement = parse(text)
    assert isinstance(statement, CreateMaterializedView)
    return statement


def test_a_view_in_a_lake_has_a_target_beside_its_own_options() -> None:
    options = "(commit_interval = '1 s', backfill_rate_limit = 5, s3.secret.key = secret K)"
    text = f"create materialized view v (a, b) using delta location '/lake/v' partitioned by (a) with {options} as"
    made = view(f"{text} select x, y from t")
    assert made.target is not None
    assert made.target.options == {
        "connector": "deltalake",
        "location": "/lake/v",
        "partition_by": "a",
        "commit_interval": "1 s",
    }
    assert made.target.secrets == {"s3.secret.key": "k"}
    assert (made.limited, made.backfill_rate_limit, made.sql) == (True, 5, "select x, y from t")
    assert view("create materialized view v as select x from t").target is None


@pytest.mark.parametrize(
    ("clauses", "reason"),
    [
        ("using parquet", "a view is USING delta"),
        ("using delta location '/a' with (location = '/b')", "Duplicated option: location"),
        ("using delta with (location = '/b', type = 'append-only')", 'unexpected options in WITH clause: \\["type"'),
        ("using delta location '/a' with (s3.secret.key = 'to be hidden')", "s3.secret.key = secret name"),
        ("with (location = '/b')", "unexpected options"),
    ],
)
def test_a_view_in_a_lake_is_refused_before_anything_is_made(clauses: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason) as refused:
        parse(f"create materialized view v {clauses} as select x from t")
    assert "to be hidden" not in str(refused.value)
