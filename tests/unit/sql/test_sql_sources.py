"""CREATE SECRET, CREATE SOURCE and CREATE TABLE .. FROM as text: places, options, and what is never repeated."""

import pytest

from service.domain.errors import Invalid
from service.sql.parse import parse
from service.sql.statements.follow import CreateTableFrom
from service.sql.statements.lake import CreateLakeSource
from service.sql.statements.relations import Drop, ShowCreate, ShowInternalTables, ShowRelations
from service.sql.statements.sources import (
    AlterSecret,
    CreateSecret,
    CreateSource,
    DropSecret,
    ShowSecrets,
    lake_source_statement,
    source_statement,
)
from service.sql.statements.tables import CreateTable

SECRET = "open sesame"
LAKE = "connector = 'deltalake', location = 's3://b/lake', s3.region = 'eu'"
REACHED = "connector = 'postgres-cdc', hostname = 'db', port = 5433, username = 'u', database.name = 'shop'"


def source(options: str, name: str = "pg") -> CreateSource:
    statement = parse(f"CREATE SOURCE {name} WITH ({options})")
    assert isinstance(statement, CreateSource)
    return statement


def follows(text: str) -> CreateTableFrom:
    statement = parse(text)
    assert isinstance(statement, CreateTableFrom)
    return statement


def test_secrets() -> None:
    assert parse(f"create secret S with (backend = 'meta') as '{SECRET}'") == CreateSecret("s", SECRET)
    assert parse(f"create secret if not exists s as '{SECRET}'") == CreateSecret("s", SECRET, if_not_exists=True)
    assert parse(f"alter secret s with (backend = 'meta') as '{SECRET}'") == AlterSecret("s", SECRET)
    assert parse("drop secret if exists s") == DropSecret("s", if_exists=True)
    assert parse("show secrets") == ShowSecrets()


def test_h6_internal_tables_are_shown() -> None:
    assert parse("SHOW INTERNAL TABLES") == ShowInternalTables()


def test_a_source_has_its_options_and_its_password_apart() -> None:
    given = source(f"{REACHED}, password = '{SECRET}', schema.name = 'sales'")
    assert (given.password, given.secret) == (SECRET, None)
    assert given.options["port"] == "5433"
    assert given.options["schema.name"] == "sales"
    assert "password" not in given.options
    assert f"{REACHED}, password = '********', schema.name = 'sales'" in given.text
    by_name = source(f'{REACHED}, password = secret "My one"')
    assert (by_name.password, by_name.secret) == (None, "My one")
    assert 'password = secret "My one"' in by_name.text
    for one in (given, by_name):
        assert SECRET not in repr(one)


def test_a_source_by_json_is_the_statement_that_makes_the_same() -> None:
    options = dict(source(f"{REACHED}, password = 'x', ssl.mode = 'required'").options)
    made = source_statement('odd "name"', options, password=None, secret="key")
    again = parse(made.text)
    assert isinstance(again, CreateSource)
    assert (again.name, again.options, again.secret) == ('odd "name"', options, "key")
    assert SECRET not in source_statement("pg", options, password=SECRET, secret=None).text


@pytest.mark.parametrize(
    ("options", "message", "at"),
    [
        (f"{REACHED}", 'option "password" is missing', ")"),
        (f"{REACHED}, password = ''", "takes a text that is not empty", "''"),
        (f"{REACHED}, password = 7", "takes a text that is not empty", "7"),
        (f"{REACHED}, password = 'x', colour = 'red'", 'unexpected options in WITH clause: ["colour"]', "colour"),
        (f"{REACHED}, password = 'x', port = 1", "Duplicated option: port", "port = 1"),
        (REACHED.replace("5433", "70000") + ", password = 'x'", 'option "port" takes a number', "70000"),
        (REACHED.replace("'db'", "'/run/db'") + ", password = 'x'", 'option "hostname" takes names', "'/run/db'"),
        (REACHED.replace("postgres-cdc", "mysql-cdc") + ", password = 'x'", 'connector "mysql-cdc"', "'mysql-cdc'"),
        (f"{REACHED}, password = 'x', slot.name = 'Big'", 'option "slot.name" takes lower-case', "'Big'"),
        (f"{REACHED}, password = 'x', ssl.mode = 'perhaps'", 'option "ssl.mode" takes one of disabled', "'perhaps'"),
        (f"{REACHED}, password = 'x', wal.retained.action = 'pray'", "takes one of pause, drop_slot", "'pray'"),
        (f"{REACHED}, password = 'x', publication.create.enable = 'hm'", "takes a boolean", "'hm'"),
        ("connector = 'postgres-cdc', password = 'x'", 'option "hostname" is missing', ")"),
    ],
)
def test_a_wrong_option_is_refused_at_its_place(options: str, message: str, at: str) -> None:
    text = f"CREATE SOURCE pg WITH ({options})"
    with pytest.raises(Invalid) as error:
        parse(text)
    assert message in error.value.message
    assert error.value.position == text.rindex(at) + 1


@pytest.mark.parametrize(
    "text",
    [
        f"CREATE SECRET s AS '{SECRET}' AND MORE",
        f"CREATE SECRET s '{SECRET}'",
        f"CREATE SECRET s WITH (backend = '{SECRET}') AS 'x'",
        f"ALTER SECRET s AS x'{SECRET}'",
        f"CREATE SECRET s AS E'{SECRET}'",
        f"CREATE SOURCE pg WITH ({REACHED}, password = E'{SECRET}')",
        f"CREATE SOURCE pg WITH ({REACHED}, password '{SECRET}')",
        f"CREATE SOURCE pg WITH ({REACHED}, password = '{SECRET}' 'twice')",
        f"CREATE SOURCE pg WITH ({REACHED}, password = '{SECRET}') '{SECRET}'",
        f"CREATE SOURCE pg WITH ({REACHED}, port = '{SECRET}', password = 'x')",
        f"CREATE SOURCE pg '{SECRET}'",
    ],
)
def test_what_is_wrong_with_a_secret_is_said_without_it(text: str) -> None:
    with pytest.raises(Invalid) as error:
        parse(text)
    assert SECRET not in error.value.message
    assert error.value.position is not None


def test_a_source_may_be_a_place_in_a_lake() -> None:
    text = f"CREATE SOURCE IF NOT EXISTS lake WITH ({LAKE}, s3.secret.key = secret Key)"
    given = parse(text)
    assert isinstance(given, CreateLakeSource)
    options = {"connector": "deltalake", "location": "s3://b/lake", "s3.region": "eu"}
    assert (given.name, given.if_not_exists, given.text) == ("lake", True, text)
    assert (given.target.options, given.target.secrets) == (options, {"s3.secret.key": "key"})
    made = lake_source_statement("lake", options, {"s3.secret.key": "key"}, if_not_exists=True)
    again = parse(made.text)
    assert isinstance(again, CreateLakeSource)
    assert (again.target.options, again.target.secrets) == (options, made.target.secrets)
    with pytest.raises(Invalid, match="is not given as a text"):
        parse(f"CREATE SOURCE lake WITH ({LAKE}, s3.secret.key = '{SECRET}')")
    with pytest.raises(Invalid, match="is no secret"):
        lake_source_statement("lake", options, {"location": "key"})


def test_a_table_of_a_lake_is_named_by_its_path() -> None:
    long = f"{'a' * 60}/{'b' * 60}"
    given = follows(f"create table t (*, primary key (id)) from lake table '{long}' with (vnode_count = 8)")
    assert (given.external, given.external_table, given.given) == (long, long, {"vnode_count"})
    assert (given.columns, [part.name for part in given.key], given.vnode_count) == (None, ["id"], 8)
    assert (
        follows("create table t (*, primary key (id)) from lake table 'eu/2024.1/sales'").external == "eu/2024.1/sales"
    )


def test_a_table_that_follows() -> None:
    given = follows(
        "CREATE TABLE IF NOT EXISTS t (id int, b text, PRIMARY KEY (id)) INCLUDE timestamp AS at "
        "WITH (snapshot.batch_size = 7, backfill.parallelism = '2', backfill.num_rows_per_split = 9, "
        "backfill.as_even_splits = false, backfill.split_pk_column_index = 0, backfill_rate_limit = auto, "
        "vnode_count = 8) FROM pg TABLE 'sales.Orders'"
    )
    assert given.columns is not None
    assert [str(column.type) for column in given.columns] == ["integer", "text"]
    assert [part.name for part in given.key] == ["id"]
    assert (given.source, given.external_schema, given.external_table) == ("pg", "sales", "Orders")
    assert (given.if_not_exists, given.timestamp, given.snapshot, given.vnode_count) == (True, "at", True, 8)
    assert (given.batch_rows, given.parallelism, given.rows_per_split, given.even_splits) == (7, 2, 9, False)
    assert (given.limited, given.backfill_rate_limit) == (True, "auto")


def test_all_columns_are_a_star_and_options_may_come_last() -> None:
    given = follows("create table t (*) from pg table 'Orders' with (snapshot = 'false')")
    assert (given.columns, given.key, given.snapshot) == (None, (), False)
    assert (given.external_schema, given.external_table) == (None, "Orders")
    assert follows("""create table t (*) from pg table '"a.b"."c"'""").external_schema == "a.b"
    assert follows("create table t (*) include timestamp from pg table 'x'").timestamp == "_timestamp"


def test_f6_values_that_cannot_be_kept_fail_unless_said_otherwise() -> None:
    for text, mode in (("", "fail"), (" with (unkeepable.handling.mode = 'null')", "null")):
        assert follows(f"create table t (*) from pg table 'x'{text}").unkeepable == mode
    with pytest.raises(Invalid, match="takes fail or null"):
        parse("create table t (*) from pg table 'x' with (unkeepable.handling.mode = 'skip')")


def test_a_table_of_its_own_is_what_it_was() -> None:
    assert isinstance(parse("create table t (id int primary key) with (vnode_count = 8)"), CreateTable)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TABLE t (*)", "needs FROM"),
        ("CREATE TABLE t (*) FROM pg", "syntax error"),
        ("CREATE TABLE t (*) FROM pg TABLE orders", "syntax error"),
        ("CREATE TABLE t (*) FROM pg TABLE 'a.'", "is named 'table' or 'schema.table'"),
        ("CREATE TABLE t (*) FROM pg TABLE 'a' FROM pg TABLE 'b'", "syntax error"),
        ("CREATE TABLE t (a int) FROM pg TABLE 'a'", "needs its PRIMARY KEY"),
        ("CREATE TABLE t (a int primary key) INCLUDE offset FROM pg TABLE 'a'", "INCLUDE offset is not supported"),
        ("CREATE TABLE t (at int primary key) INCLUDE timestamp AS at FROM pg TABLE 'a'", "more than once"),
        ("CREATE TABLE t (*) WITH (backfill.parallelism = 257) FROM pg TABLE 'a'", "from 0 to 256"),
        ("CREATE TABLE t (*) WITH (hostname = 'x') FROM pg TABLE 'a'", "unexpected options"),
    ],
)
def test_a_table_that_cannot_follow_is_refused(text: str, message: str) -> None:
    with pytest.raises(Invalid) as error:
        parse(text)
    assert message in error.value.message


def test_sources_are_shown_and_dropped() -> None:
    kind = parse("show sources")
    assert isinstance(kind, ShowRelations)
    dropped = parse("drop source if exists pg cascade")
    assert isinstance(dropped, Drop)
    assert (dropped.kind, dropped.if_exists, dropped.cascade) == (kind.kind, True, True)
    assert parse("show create source pg") == ShowCreate(kind.kind, "pg")
