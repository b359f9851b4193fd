from decimal import Decimal

import pytest

from service.domain.errors import Invalid
from service.domain.parallelism import Adaptive, Bounded, Fixed, Ratio
from service.protocol.ids import FragmentId, JobId
from service.protocol.relation import RelationKind
from service.sql.parse import parse
from service.sql.statements.jobs import (
    AlterFragmentRateLimit,
    AlterParallelism,
    AlterRateLimit,
    CancelJobs,
    Flush,
    Recover,
    ShowJobs,
    Wait,
)
from service.sql.statements.relations import Describe, Drop, ShowCreate, ShowRelations
from service.sql.statements.select import Select
from service.sql.statements.settings import AlterSystem, SetVariable, ShowParameters, ShowVariable
from service.sql.statements.statement import Statement
from service.sql.statements.views import CreateMaterializedView

TABLE, VIEW = RelationKind.TABLE, RelationKind.MATERIALIZED_VIEW

COMMANDS: list[tuple[str, Statement]] = [
    ("FLUSH", Flush()),
    ("flush;", Flush()),
    (" ; -- nothing\n flush ; ; /* a /* nested */ comment */", Flush()),
    ("RECOVER", Recover()),
    ("WAIT", Wait()),
    ("WAIT TABLE t", Wait(TABLE, "t")),
    ("wait materialized view public.M", Wait(VIEW, "m")),
    ("DROP TABLE t", Drop(TABLE, "t")),
    ("DROP TABLE IF EXISTS t CASCADE", Drop(TABLE, "t", if_exists=True, cascade=True)),
    ("DROP TABLE t CASCADE PURGE", Drop(TABLE, "t", cascade=True, purge=True)),
    ('DROP MATERIALIZED VIEW "M v" RESTRICT', Drop(VIEW, "M v")),
    ("SET backfill_rate_limit = 10", SetVariable("backfill_rate_limit", "10")),
    ("SET Backfill_Rate_Limit TO DEFAULT", SetVariable("backfill_rate_limit", "default")),
    ("SET SESSION background_ddl = true", SetVariable("background_ddl", "true")),
    ("SET background_ddl TO on", SetVariable("background_ddl", "on")),
    ("SET backfill_rate_limit = 'auto'", SetVariable("backfill_rate_limit", "auto")),
    ("SET backfill_rate_limit = -1", SetVariable("backfill_rate_limit", "-1")),
    ("SET timezone = 'Europe/Prague'", SetVariable("timezone", "Europe/Prague")),
    ("SET TIME ZONE 'UTC'", SetVariable("timezone", "UTC")),
    ("SHOW ALL", ShowVariable(None)),
    ("SHOW backfill_rate_limit", ShowVariable("backfill_rate_limit")),
    ("SHOW JOBS", ShowJobs()),
    ("SHOW PARAMETERS", ShowParameters()),
    ("SHOW TABLES", ShowRelations(TABLE)),
    ("SHOW MATERIALIZED VIEWS", ShowRelations(VIEW)),
    ("SHOW CREATE TABLE t", ShowCreate(TABLE, "t")),
    ("SHOW CREATE MATERIALIZED VIEW m", ShowCreate(VIEW, "m")),
    ("DESCRIBE t", Describe("t")),
    ("SHOW COLUMNS FROM t", Describe("t")),
    ("ALTER SYSTEM SET barrier_interval_ms = 500", AlterSystem("barrier_interval_ms", "500")),
    ("ALTER SYSTEM SET pause_on_next_bootstrap TO true", AlterSystem("pause_on_next_bootstrap", "true")),
    ("ALTER SYSTEM SET checkpoint_frequency TO DEFAULT", AlterSystem("checkpoint_frequency", "default")),
    ("ALTER MATERIALIZED VIEW m SET BACKFILL_RATE_LIMIT = 0", AlterRateLimit(VIEW, "m", 0)),
    ("ALTER MATERIALIZED VIEW m SET BACKFILL_RATE_LIMIT TO 100", AlterRateLimit(VIEW, "m", 100)),
    ("ALTER MATERIALIZED VIEW m SET BACKFILL_RATE_LIMIT TO -1", AlterRateLimit(VIEW, "m", None)),
    ("ALTER MATERIALIZED VIEW m SET BACKFILL_RATE_LIMIT = DEFAULT", AlterRateLimit(VIEW, "m", None)),
    ("ALTER MATERIALIZED VIEW m SET BACKFILL_RATE_LIMIT TO AUTO", AlterRateLimit(VIEW, "m", "auto")),
    ("ALTER MATERIALIZED VIEW m SET BACKFILL_RATE_LIMIT = 'auto'", AlterRateLimit(VIEW, "m", "auto")),
    ("ALTER TABLE t SET BACKFILL_RATE_LIMIT = 1", AlterRateLimit(TABLE, "t", 1)),
    ("ALTER MATERIALIZED VIEW m SET PARALLELISM = 4", AlterParallelism(VIEW, "m", Fixed(4))),
    ("ALTER MATERIALIZED VIEW m SET PARALLELISM TO adaptive", AlterParallelism(VIEW, "m", Adaptive())),
    ("ALTER MATERIALIZED VIEW m SET PARALLELISM TO Bounded (4)", AlterParallelism(VIEW, "m", Bounded(4))),
    ("ALTER MATERIALIZED VIEW m SET PARALLELISM TO default", AlterParallelism(VIEW, "m", None)),
    (
        "ALTER MATERIALIZED VIEW m SET BACKFILL_PARALLELISM = 'ratio(0.5)' DEFERRED",
        AlterParallelism(VIEW, "m", Ratio(Decimal("0.5")), backfill=True, deferred=True),
    ),
    (
        "ALTER MATERIALIZED VIEW m SET BACKFILL_PARALLELISM TO DEFAULT",
        AlterParallelism(VIEW, "m", None, backfill=True),
    ),
    ("ALTER FRAGMENT 7 SET RATE_LIMIT = 5", AlterFragmentRateLimit(FragmentId(7), 5)),
    ("ALTER FRAGMENT 7 SET RATE_LIMIT = 'Auto'", AlterFragmentRateLimit(FragmentId(7), "auto")),
    ("ALTER FRAGMENT 7 SET BACKFILL_RATE_LIMIT TO DEFAULT", AlterFragmentRateLimit(FragmentId(7), None)),
    ("CANCEL JOBS 3, 1, 3", CancelJobs((JobId(3), JobId(1)))),
    ("cancel job 9", CancelJobs((JobId(9),))),
    ("select 1 -- one\n;", Select("select 1")),
    ("TABLE t", Select("TABLE t", ("t",))),
    ("select 'rw_jobs' from rw_orders", Select("select 'rw_jobs' from rw_orders", ("rw_orders",))),
    ("table RW_Catalog.rw_jobs", Select("table RW_Catalog.rw_jobs", catalog=True)),
    ("values (1), (2)", Select("values (1), (2)")),
]


@pytest.mark.parametrize(("text", "value"), COMMANDS, ids=[text for text, _ in COMMANDS])
def test_a_statement_becomes_its_value(text: str, value: Statement) -> None:
    assert parse(text) == value


ONE_EACH = "each statement is a transaction of its own, and one INSERT takes many rows"
REFUSED = [
    ("", "the statement is empty", 1),
    ("-- nothing", "the statement is empty", 1),
    (" ; ", "the statement is empty", 1),
    ("flush; flush", "cannot run more than one statement in a call", 8),
    ("select 1; drop table t", "cannot run more than one statement in a call", 11),
    ("frobnicate", 'syntax error at or near "frobnicate"', 1),
    ("  42", 'syntax error at or near "42"', 3),
    ("FLUSH now", 'syntax error at or near "now"', 7),
    ("DROP TABLE", "syntax error at end of input", 11),
    ("DROP TABLE a, b", "DROP takes one relation", 13),
    ("DROP TABLE other.t", 'schema "other" does not exist: relations live in "public"', 12),
    ("DROP TABLE select", 'syntax error at or near "select"', 12),
    ("CREATE SINK s FROM t", "syntax error at end of input", 21),
    ("CREATE SINK s", "syntax error at end of input", 14),
    ("CREATE TEMP TABLE t (a int)", "CREATE TEMP is not supported: use WITH in the query, or a logical view", 8),
    (
        "CREATE OR REPLACE TABLE t (a int)",
        (
            "CREATE OR REPLACE is not supported: DROP it and CREATE it again, or CREATE it under another name and"
            " move the readers"
        ),
        8,
    ),
    ("CREATE MATERIALIZED m", 'syntax error at or near "m"', 21),
    ("BEGIN", f"BEGIN is not supported: {ONE_EACH}", 1),
    ("commit", f"COMMIT is not supported: {ONE_EACH}", 1),
    (
        "COPY t FROM STDIN",
        "COPY is not supported: tidefill load sends files of rows, and POST /v1/relations/{table}/rows takes them",
        1,
    ),
    ("TRUNCATE t, u", "TRUNCATE takes one table", 11),
    ("TRUNCATE TABLE t CASCADE", "TRUNCATE .. CASCADE is not supported: truncate each table", 18),
    ("do $$ begin end $$", "DO is not supported", 1),
    ("call f()", "CALL is not supported", 1),
    ("SET LOCAL a = 1", "SET LOCAL is not supported", 5),
    ("SET ROLE x", "SET ROLE is not supported", 5),
    ("SET a", "syntax error at end of input", 6),
    ("SET a = (1)", 'syntax error at or near "("', 9),
    ("CANCEL JOBS", "syntax error at end of input", 12),
    (f"CANCEL JOBS {', '.join(map(str, range(101)))}", "CANCEL JOBS takes at most 100 ids", 403),
    ("CANCEL JOBS x", 'syntax error at or near "x"', 13),
    ("CANCEL JOBS 99999999999999999999", "99999999999999999999 is out of range: at most 9223372036854775807", 13),
    ("ALTER MATERIALIZED VIEW m SET PARALLEL = 2", "ALTER ... SET PARALLEL is not supported", 31),
    ("ALTER MATERIALIZED VIEW m SET PARALLELISM 2", 'syntax error at or near "2"', 43),
    ("ALTER MATERIALIZED VIEW m SET PARALLELISM = 2 LATER", 'syntax error at or near "LATER"', 47),
    ("ALTER MATERIALIZED VIEW m SET PARALLELISM = bounded(2", "syntax error at end of input", 54),
    ("ALTER MATERIALIZED VIEW m SET BACKFILL_RATE_LIMIT = 1.5", "1.5 is not a whole number", 53),
    ("ALTER MATERIALIZED VIEW m SET BACKFILL_RATE_LIMIT = 'fast'", "syntax error at or near \"'fast'\"", 53),
    ("ALTER MATERIALIZED VIEW m SET BACKFILL_RATE_LIMIT = AUTO 1", 'syntax error at or near "1"', 58),
    ("ALTER FRAGMENT 1, 2 SET RATE_LIMIT = 1", "ALTER FRAGMENT takes one fragment", 17),
    ("ALTER SOURCE s SET SOURCE_RATE_LIMIT = 1", "ALTER SOURCE is not supported", 7),
    ("WAIT INDEX i", "WAIT INDEX is not supported", 6),
    ("EXPLAIN SHOW JOBS", "EXPLAIN is of CREATE MATERIALIZED VIEW and of SELECT", 9),
    ("EXPLAIN ANALYZE select 1", "EXPLAIN ANALYZE is not supported", 9),
    ("EXPLAIN (verbose) select 1", "EXPLAIN takes the options (backfill, format dot)", 10),
    ("EXPLAIN (backfill) select 1", "EXPLAIN takes the options (backfill, format dot)", 9),
    ("EXPLAIN (backfill, format json) select 1", "EXPLAIN takes the options (backfill, format dot)", 20),
    ("EXPLAIN (backfill, format dot select 1", 'syntax error at or near "select"', 31),
    ("EXPLAIN (backfill, format dot) select 1", "EXPLAIN (backfill) is of CREATE MATERIALIZED VIEW", 32),
    ("select 'abc", "unterminated quoted string", 8),
    ('select "abc', "unterminated quoted identifier", 8),
    ("select /* x", "unterminated /* comment", 8),
    ("select $a$ x $b$", "unterminated dollar-quoted string", 8),
    ("select 9_1é", 'trailing junk after numeric literal at or near "9_1é"', 8),
    ('select ""', "zero-length delimited identifier", 8),
    ("select U&'x'", 'U&"..." is not supported: write the characters themselves', 8),
    ("select 'a\0b'", "the statement contains a character that is not text", 10),
    ("DROP TABLE " + "x" * 64, f'identifier "{"x" * 20}..." is longer than 63 bytes', 12),
    ("DROP TABLE " + "é" * 32, f'identifier "{"é" * 20}..." is longer than 63 bytes', 12),
    ("select " + "(" * 101 + ")" * 101, "the statement is nested more than 100 deep", 108),
]


@pytest.mark.parametrize(("text", "message", "position"), REFUSED, ids=[text[:40] for text, _, _ in REFUSED])
def test_a_wrong_statement_is_refused_at_its_place(text: str, message: str, position: int) -> None:
    with pytest.raises(Invalid) as error:
        parse(text)
    assert (str(error.value), error.value.position) == (message, position)


def test_a_limit_is_of_a_view_or_of_a_table() -> None:
    limits = [parse(f"ALTER {kind} t SET BACKFILL_RATE_LIMIT = 1") for kind in ("TABLE", "MATERIALIZED VIEW")]
    kinds = [statement.kind for statement in limits if isinstance(statement, AlterRateLimit)]
    assert kinds == [RelationKind.TABLE, RelationKind.MATERIALIZED_VIEW]


WITH = "create materialized view m with ({}) as select * from t"


@pytest.mark.parametrize(
    ("options", "limited", "limit"),
    [
        ("backfill_rate_limit = 10", True, 10),
        ("backfill_rate_limit='10'", True, 10),
        ("Backfill_Rate_Limit = 0", True, 0),
        ("backfill_rate_limit = auto", True, "auto"),
        ("backfill_rate_limit = 'AUTO'", True, "auto"),
        ("backfill_rate_limit = -1", True, None),
        ("backfill_order = AUTO", False, None),
        ("backfill_order = none, backfill_rate_limit = 1", True, 1),
        ("backfill_order = FIXED(a -> b, b->c)", False, None),
    ],
)
def test_options_of_a_view(options: str, limited: bool, limit: int | None) -> None:
    statement = parse(WITH.format(options))
    assert isinstance(statement, CreateMaterializedView)
    assert (statement.limited, statement.backfill_rate_limit) == (limited, limit)
    assert statement.text == WITH.format(options)


@pytest.mark.parametrize(
    ("options", "serverless"),
    [
        ("cloud.serverless_backfill_enabled = true", True),
        ("cloud.serverless_backfill_enabled = 'Off', backfill_rate_limit = 1", False),
        ("backfill_rate_limit = 1", None),
    ],
)
def test_a_view_asks_for_a_worker_of_its_own(options: str, serverless: bool | None) -> None:
    statement = parse(WITH.format(options))
    assert isinstance(statement, CreateMaterializedView)
    assert statement.serverless is serverless


@pytest.mark.parametrize(
    ("options", "group"), [("resource_group = 'big-ones'", "big-ones"), ("backfill_rate_limit = 1", None)]
)
def test_a_view_names_the_profile_of_its_worker(options: str, group: str | None) -> None:
    statement = parse(WITH.format(options))
    assert isinstance(statement, CreateMaterializedView)
    assert statement.resource_group == group


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "cloud.serverless_backfill_enabled = perhaps",
            'option "cloud.serverless_backfill_enabled" takes a boolean, not perhaps',
        ),
        ("backfill_rate_limit = 1, backfill_rate_limit = 2", "Duplicated option: backfill_rate_limit"),
        ("refresh = 1, a.b = 'x'", 'unexpected options in WITH clause: ["a.b", "refresh"]'),
        ("backfill_rate_limit = many", 'option "backfill_rate_limit" takes an integer, not many'),
        ("backfill_rate_limit = 9999999999", "9999999999 is out of range: at most 2147483647"),
        ("backfill_rate_limit =", 'syntax error at or near ")"'),
        ("backfill_order = SOMETIMES", 'syntax error at or near "SOMETIMES"'),
        ("backfill_order = FIXED(a - > b)", 'syntax error at or near "-"'),
        ("", 'syntax error at or near ")"'),
    ],
)
def test_wrong_options_of_a_view(options: str, message: str) -> None:
    with pytest.raises(Invalid) as error:
        parse(WITH.format(options))
    assert str(error.value) == message
    assert error.value.position is not None
