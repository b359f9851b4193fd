"""An expression of a view gives in Spark what it gives in Postgres. `docs/sql.md` lists what is known to differ.

One query with a column per expression runs on each side over the same rows; so one session and one server serve all.
"""

import math
import re
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import TimestampType

from service.domain.errors import Invalid
from service.sql.expressions.functions import FUNCTIONS
from service.sql.expressions.typed import literal
from tests.support.expressions import bound, query_of, table

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

TABLE = """create table t (id integer primary key, s smallint, i integer, b bigint, r real, d double precision,
    n numeric(12,2), m numeric(20,6), x text, y text, ok boolean, dt date, ts timestamp, tz timestamptz, u uuid,
    tm time, j jsonb, raw bytea, a integer[], ta text[])"""

ROWS = [
    # A NULL in every column that can hold one.
    ["1", *[None] * 19],
    [
        *("2", "7", "-7", "9000000000", "1.5", "2.5", "2.50", "-2.500000", "Abc", "b", "t", "2024-02-29"),
        *(
            "2024-01-31 13:14:15.5",
            "2024-12-31 23:59:59.999999+00",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "10:20:30.5",
        ),
        '{"k": "v", "n": 12, "o": {"p": "q"}, "l": [1, 2], "z": null, "t": true}',
        *("\\x00ff", "{1,2,3}", "{a,b}"),
    ],
    [
        *("3", "-3", "4", "-5", "-0.5", "-3.5", "-3.45", "0.000001", "a\\b'c\"%_\n", "%", "f", "1999-12-27"),
        *("2000-03-01 00:00:00", "1999-01-01 00:00:00+00", "00000000-0000-0000-0000-000000000000", "23:59:59"),
        *("{}", "\\x", "{}", "{NULL}"),
    ],
    [
        *(
            "4",
            "1",
            "1000000007",
            "1",
            "0",
            "0.5",
            "0.00",
            "123456.654321",
            "žluťoučký kůň 🐎",
            "kůň",
            "t",
            "2024-12-30",
        ),
        *("2024-06-15 12:00:00", "2024-06-15 12:00:00.000001+00", "ffffffff-ffff-ffff-ffff-ffffffffffff", "00:00:00"),
        *('[1, {"k": "w"}]', "\\x6162", "{5,NULL}", '{"x y",NULL,""}'),
    ],
    [
        *(
            "5",
            "0",
            "0",
            "0",
            "-1.5",
            "-0.5",
            "999999.99",
            "-0.5",
            "",
            " pad ",
            "f",
            "2023-01-01",
            "1970-01-01 00:00:00",
        ),
        *(
            "1970-01-01 00:00:00+00",
            "12345678-1234-1234-1234-123456789abc",
            "12:00:00",
            '{"k": ""}',
            "\\x61",
            "{0}",
            "{c}",
        ),
    ],
]

# Every expression has to be defined on every row.
EXPRESSIONS = r"""
s + s | s + i / 2 | i / 2 | i / -2 | b / 7 | -7 / 2 | i % 4 | b % 7 | -i % 3 | mod(i, 5) | n * 3 | n + i | n - m
b + i | s * b | n + d | r + r | r + i | r * 0.5 | d * 2 | d / 4 | -d | +i | abs(i + 1) | abs(n) | abs(d) | sign(n) | sign(d) | sign(i)
i & 6 | i # 3 | s @@ 8 | ~ s | sqrt(abs(d))
character_length(y) | round(n) | round(m) | round(n, 1) | round(m, 3) | round(n, -2) | round(d) | round(i, -1) | ceil(n) | ceil(d) | floor(n) | floor(m)
floor(d) | trunc(d) | trunc(n) | ceiling(i)
n::integer | m::bigint | d::integer | r::smallint | d::bigint | n::double precision | i::numeric(20,3) | i::real | i::bigint | d::numeric(10,1)
ok::integer | i::boolean | ok::text | i::text | n::text | m::text | b::text || 'x' | dt::text | ts::text | tz::text | u::text | tm::text
raw::text | '12'::integer + 1 | ' 42 '::bigint | '1.25'::numeric(5,1) | '1e2'::double precision | 'NaN'::double precision | ts::date | tz::date
dt::timestamp | dt::timestamptz | ts::timestamptz | tz::timestamp | cast(i as text) | '7'::text::integer | '2024-05-06'::text::date | x::text
n::numeric(12,1) | m::numeric(20,0) | d::real::double precision = d
x || y | x || i | 'a' || 'b' | x || null | concat(x, y, i, ok) | concat(null, 'a') | concat_ws('-', x, null, y, n) | upper(y) | lower(y)
length(x) | char_length(x) | octet_length(x) | octet_length(raw) | length(raw) | bit_length(y) | substring(x, 2) | substring(x, 0) | substring(x, -1, 3)
substring(x, 2, 2) | substring(x from 2 for 1) | substring(x, i / 1000000007) | substr(x, 0, 2) | substring(x for 2) | left(x, 2) | left(x, -1)
left(x, 0) | left(x, s) | right(x, 2) | right(x, -1) | right(x, 0) | right(x, s) | lpad(x, 5, 'xy') | lpad(x, 2) | rpad(x, 5, 'ab') | rpad(y, 3)
lpad(x, -1, 'a') | trim(y) | btrim(y) | ltrim(y) | rtrim(y) | trim(both 'bp' from y) | trim(leading 'A' from x) | btrim(x, 'Ac') | rtrim(x, 'c')
replace(x, 'b', '\') | replace(x, '', 'z') | translate(x, 'Abc', 'xy') | reverse(x) | repeat(y, 2) | repeat(y, -1) | md5(x) | md5(raw) | ascii(x) | ascii('')
split_part(x, 'b', 1) | split_part(x, 'b', 2) | split_part(x, 'b', -1) | split_part(x, 'q', 3) | strpos(x, 'b') | position('' in x) | position('c' in x)
starts_with(x, 'A') | 'a⏎b' | 'it''s' | '\' | '%\_"`$' | '' | ' ' | x like '%b%' | x like 'A__' | x not like 'a%' | x like '%\%%'
x like '%\\%' | x like '%!%%' escape '!' | x like '%⏎' | x like '%\b%' | x like '%''%' | '' like '%'
x like y | x like '%l%k%_' | x not like '%\\%\"%\%\__' | x like 'a%\\%!%%' escape '!' | x like null | x like '%b%' || y
ok and i > 0 | ok or i > 0 | not ok | ok is true | ok is not false | ok is null | ok is unknown | x is null | x is not null | null is null
i = 4 | i <> 4 | i != 4 | i < 0 | i >= 0 | d = -0.5 | r = 1.5 | n = 2.5 | n > i | b > d | x = 'Abc' | x < 'b' | x > 'Z' | x <= y | u > '00000000-0000-0000-0000-000000000001'
u = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11' | tm < '12:00' | tm = '10:20:30.50' | dt > '2020-01-01' | dt = date '2024-02-29' | ts > '2000-03-01'
ts = timestamp '2024-01-31 13:14:15.5' | tz >= '2024-06-15 12:00:00.000001Z' | tz < '2024-06-15 14:00:00+02' | raw = '\x00ff' | raw > '\x00' | dt < ts | ts < tz | ok > false
i is distinct from 4 | i is not distinct from null | i in (4, 0, null) | i not in (4, 0) | x in ('', 'Abc') | n in (2.5, 0) | i between 0 and 10
n between -4 and 2.5 | i not between 0 and 10 | dt between '2023-01-01' and '2024-12-31'
case when i > 0 then 'p' when i < 0 then 'n' else 'z' end | case i when 4 then 1 when 0 then 2 end | case when ok then n else i end | coalesce(i, 5)
coalesce(x, 'none') | coalesce(null, y) | nullif(i, 4) | nullif(x, '') | nullif(n, i) | greatest(i, s, 3) | least(n, i) | greatest(x, y) | least(null, i)
greatest(dt, date '2024-01-01') | coalesce(u, '00000000-0000-0000-0000-00000000000A') | case when i > 0 then d else n end
extract(year from ts) | extract(month from dt) | extract(day from tz) | extract(dow from dt) | extract(isodow from dt) | extract(doy from dt) | extract(week from dt)
extract(isoyear from dt) | extract(quarter from ts) | extract(hour from ts) | extract(minute from tz) | extract(second from ts) | extract(epoch from tz) | extract(epoch from ts)
date_part('year', dt) | date_part('second', ts) | extract(year from ts) * 5 = 10120 | date_trunc('day', ts) | date_trunc('month', tz) | date_trunc('week', dt) | date_trunc('quarter', ts)
date_bin('15 minutes', ts, timestamp '2001-01-01') | date_bin('1 day 02:00:00.000001', tz, '2030-01-01 00:00:03+00') | date_bin(interval '7 days', ts, dt)
date_trunc('hour', tz) | date_trunc('year', ts) | date_trunc('minute', ts) | date_trunc('second', tz)
dt + 1 | 2 + dt | dt - s | dt - date '2024-01-01' | ts + interval '1 month' | ts - interval '1 month 1 day' | tz + interval '1 day 02:30:00' | dt + interval '90 minutes'
ts + interval '1.5 seconds' | ts - interval '-1 week' | dt - interval '1 year' | ts + '2 hours'::interval | ts + interval '3' day | ts - interval '1' month | make_date(2024, 2, 29) | tz at time zone 'UTC' | ts at time zone 'UTC'
a[1] | a[2] | a[0] | a[-1] | a[9] | a[i] | ta[1] | array_length(a, 1) | cardinality(a) | 2 = any(a) | i = any(a) | 'a' = any(ta) | array[1, i] | a | ta
1 | 2147483648 | 9223372036854775808 | 1.50 | 1e3 | .5 | 1e-3 | true | false | null | -2147483648 | 'text' | date '2024-01-01' | timestamptz '2024-01-01 00:00:00+02'
"""  # noqa: E501 - one expression after the other


def expressions() -> list[str]:
    """Return each expression; `@@` stands for the operator that separates them here and `⏎` for a new line."""
    parts = EXPRESSIONS.replace("\n", " | ").split(" | ")
    return [part.strip().replace("@@", "|").replace("⏎", "\n") for part in parts if part.strip()]


def in_postgres(url: str, texts: list[str]) -> list[tuple[Any, ...]]:
    columns = ", ".join(f"{text} as c{place}" for place, text in enumerate(texts))
    with psycopg.connect(url) as connection:
        load(connection)
        return run(connection, f"select {columns} from t order by id")


def load(connection: psycopg.Connection) -> None:
    connection.execute("set timezone = 'UTC'")
    connection.execute(TABLE)
    connection.execute('alter table t alter x type text collate "C", alter y type text collate "C"')
    with connection.cursor() as cursor:
        cursor.executemany(f"insert into t values ({', '.join(['%s'] * 20)})".encode(), ROWS)


def run(connection: psycopg.Connection, text: str) -> list[tuple[Any, ...]]:
    # Psycopg takes composed texts as bytes only: a `%` in them is no parameter.
    return connection.execute(text.encode()).fetchall()


def in_spark(session: SparkSession, texts: list[str], condition: str = "true") -> list[tuple[Any, ...]]:
    relation = table(TABLE)
    columns = ", ".join(f"{text} as c{place}" for place, text in enumerate(texts))
    shown = bound(query_of(f"select {columns} from t"), relation).texts
    rows: list[str] = []
    for row in ROWS:
        values = [spark_value(text, column.type) for text, column in zip(row, relation.columns, strict=True)]
        rows.append(f"({', '.join(values)})")
    names = ", ".join(f"`{column.name}`" for column in relation.columns)
    frame = session.sql(f"select * from values {', '.join(rows)} as t({names}) where {condition} order by id")
    frame = frame.selectExpr(*(f"{text} as c{place}" for place, text in enumerate(shown)))
    shown = [
        f"unix_micros({field.name}) as {field.name}" if isinstance(field.dataType, TimestampType) else field.name
        for field in frame.schema.fields
    ]
    return [tuple(row) for row in frame.selectExpr(*shown).collect()]


def spark_value(text: str | None, kind: Any) -> str:
    if text is None:
        return f"cast(NULL as {kind.spark})"
    if kind.array:
        items = {"{}": [], "{NULL}": [None], '{"x y",NULL,""}': ["x y", None, ""]}.get(text)
        parts = items if items is not None else [None if p == "NULL" else p for p in text[1:-1].split(",")]
        listed = ", ".join("NULL" if part is None else f"'{part}'" for part in parts)
        return f"cast(array({listed}) as {kind.spark})"
    if kind.name == "jsonb":
        return "'" + text.replace("'", "\\'") + "'"
    return f"cast({literal(text, kind)} as {kind.spark})"


def same(postgres: Any, spark: Any) -> bool:
    match postgres:
        case float():
            value = float(spark) if spark is not None else math.inf
            return math.isnan(value) if math.isnan(postgres) else postgres == value
        case Decimal():
            return spark is not None and Decimal(spark) == postgres
        case _ if hasattr(postgres, "tzinfo") and postgres.tzinfo is not None:
            return spark == math.floor(postgres.timestamp()) * 10**6 + postgres.microsecond
        case _ if type(postgres).__name__ in ("UUID", "time"):
            return str(postgres) == spark
        case bytes():
            return bytes(spark) == postgres
        case _:
            return postgres == spark and type(postgres) is type(spark)


def test_every_function_is_compared() -> None:
    words = set(re.findall(r"\w+", EXPRESSIONS.lower()))
    assert not {name for name, row in FUNCTIONS.items() if row.overloads or row.binder} - words


@pytest.mark.parametrize(
    "text",
    ["2 ^ 3", "power(2, s)", "pow(2.0, i % 4)", "cbrt(27.0)", "exp(0)", "1 + ln(abs(d))", "log(100)", "log10(1000)",
     "j -> 'k'", "upper(j ->> 'k')", "j -> 'l' ->> 1", "x ilike 'aBC'", "x not ilike y"],
)  # fmt: skip
def test_what_spark_computes_otherwise_is_the_stores_alone(text: str) -> None:
    with pytest.raises(Invalid, match=r"last digit differs|JSON numbers as floats|ignores case as Postgres does"):
        bound(query_of(f"select {text} as c from t"), table(TABLE))


def test_an_expression_gives_the_same_in_postgres_and_in_spark(database_url: str, spark: SparkSession) -> None:
    texts = expressions()
    differing = [
        f"{text}: row {row + 1}: Postgres {expected!r}, Spark {found!r}"
        for row, (left, right) in enumerate(
            zip(in_postgres(database_url, texts), in_spark(spark, texts), strict=True),
        )
        for text, expected, found in zip(texts, left, right, strict=True)
        if not same(expected, found)
    ]
    assert not differing, "\n".join(differing)


REFUSED = (
    "i / 0",
    "d / 0",
    "i % 0",
    "sqrt(d - 100)",
    "(s * 10000)::smallint",
    "s * 30000::smallint",
    "i * 2000000000",
    "b * 9000000000",
    "substring(x, 1, -1)",
    "split_part(x, 'a', 0)",
    "x::integer",
    "x::date",
    "x::boolean",
    "n::numeric(2,2)",
    "make_date(2023, 2, 29)",
)


def test_an_expression_that_fails_in_postgres_fails_in_spark(database_url: str, spark: SparkSession) -> None:
    kept: list[str] = []
    with psycopg.connect(database_url, autocommit=True) as connection:
        load(connection)
        for text in REFUSED:
            with pytest.raises(psycopg.DataError):
                run(connection, f"select {text} from t where id = 2")
            try:
                in_spark(spark, [text], "id = 2")
            except (PySparkException, Py4JError):
                continue
            kept.append(text)
    assert not kept


def test_a_literal_and_a_name_reach_spark_as_they_are_written(spark: SparkSession) -> None:
    texts = [
        "\\",
        "\\n",
        "\\\\",
        "'",
        "''",
        "\\'",
        '"',
        "`",
        "%\\_",
        "\n\r\t\x1a\x08\x7f",
        "\\u0041",
        "\\101",
        "\\Z",
        "--",
        "/*",
        ";",
        "$",
        "{}",
    ]
    names = ["a`b", "select", "x y", "q''", 'd"', "back\\slash", "--", "UPPER"]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    relation = table(f'create table t ({", ".join(f"{name} text" for name in quoted)}, primary key ("UPPER"))')
    items = [*quoted, *("'" + text.replace("'", "''") + "'" for text in texts)]
    columns = ", ".join(f"{item} as c{place}" for place, item in enumerate(items))
    found = bound(query_of(f"select {columns} from t"), relation).texts
    labels = ", ".join("`" + name.replace("`", "``") + "`" for name in names)
    values = ", ".join(f"'{place}'" for place in range(len(names)))
    frame = spark.sql(f"select * from values ({values}) as t({labels})")
    [row] = frame.selectExpr(*(f"{text} as r{place}" for place, text in enumerate(found))).collect()
    assert list(row) == [*(str(place) for place in range(len(names))), *texts]
