"""A table takes exactly the values that Spark can hold, and says which column refused which."""

import psycopg
import pytest

from service.protocol.ids import DATABASE_GRAPH, Epoch, Term
from service.protocol.relation import RelationKind
from tests.support.state_store import Store, relation

pytestmark = pytest.mark.postgres

TERM = Term(7)
KINDS = {
    "id": "integer", "a bool": "boolean", "i2": "smallint", "i8": "bigint", "f4": "real", "f8": "double precision",
    "n": "numeric(5,2)", "t": "text", "b": "bytea", "d": "date", "tm": "time", "ts": "timestamp", "tz": "timestamptz",
    "u": "uuid", "j": "jsonb", "iv": "interval", "ta": "text[]", "da": "date[]", "na": "numeric(38,0)[]",
    "tza": "timestamptz[]",
}  # fmt: skip
ALL = relation(1, "all types", KINDS)
YEARS = "must be finite and in the years 1 to 9999"
SHAPE = "an array must have one dimension and begin at index 1"


@pytest.fixture
async def writer(store: Store) -> str:
    await store.tables.create(ALL, term=TERM)
    return store.logins.writer_url


async def _put(url: str, column: str, value: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, application_name="tidefill-test") as conn:
        await conn.execute(f'insert into state.t_1 (_vnode, id, "{column}", _from) values (0, 1, {value}, 5)'.encode())


KEPT = (
    *((column, "null") for column in KINDS if column != "id"),
    ("d", "'0001-01-01'"), ("d", "'9999-12-31'"),
    ("ts", "'0001-01-01'"), ("ts", "'9999-12-31 23:59:59.999999'"),
    ("tz", "'0001-01-01 00:00:00+00'"), ("tz", "'9999-12-31 23:59:59.999999+00'"),
    ("tm", "'24:00'"), ("n", "-999.99"), ("f8", "'NaN'"), ("f4", "'-Infinity'"), ("f8", "-0.0"),
    ("iv", "'infinity'"), ("ta", "'{}'"), ("ta", "'{a,NULL}'"), ("da", "'{NULL,2020-01-01}'"), ("na", "'{NULL}'"),
)  # fmt: skip
REFUSED = (
    ("d", "'infinity'", f"a date {YEARS}"), ("d", "'-infinity'", f"a date {YEARS}"),
    ("d", "'0001-12-31 BC'", f"a date {YEARS}"), ("d", "'10000-01-01'", f"a date {YEARS}"),
    ("ts", "'infinity'", f"a timestamp {YEARS}"), ("ts", "'10000-01-01'", f"a timestamp {YEARS}"),
    ("ts", "'0001-12-31 23:59:59.999999 BC'", f"a timestamp {YEARS}"),
    ("tz", "'-infinity'", f"a timestamptz {YEARS}"), ("tz", "'10000-01-01 00:00:00+00'", f"a timestamptz {YEARS}"),
    ("tz", "'0001-01-01 00:00:00+01'", f"a timestamptz {YEARS}"),
    ("n", "'NaN'", "NaN cannot be kept"),
    ("ta", "'{{a},{b}}'", SHAPE), ("ta", "'[0:0]={a}'", SHAPE),
    ("da", "'{2020-01-01,infinity}'", f"a date {YEARS}; {SHAPE}"),
    ("da", "'{NULL,10000-01-01}'", f"a date {YEARS}; {SHAPE}"),
    ("na", "'{1,NaN}'", f"NaN cannot be kept; {SHAPE}"),
    ("tza", "'{-infinity}'", f"a timestamptz {YEARS}; {SHAPE}"),
)  # fmt: skip


async def test_kept(store: Store, writer: str) -> None:
    altered: list[tuple[str, str]] = []
    for column, value in KEPT:
        await _put(writer, column, value)
        same = f'"{column}" is not distinct from {value}::{KINDS[column]}'
        if await store.rows(f"select {same} from state.t_1") != [(True,)]:
            altered.append((column, value))
        await store.run("truncate state.t_1")
    assert altered == []


async def test_refused(store: Store, writer: str) -> None:
    said: list[tuple[str, str, str]] = []
    for column, value, _ in REFUSED:
        with pytest.raises(psycopg.errors.CheckViolation) as refused:
            await _put(writer, column, value)
        assert refused.value.diag.column_name == column
        words = refused.value.diag.message_primary or ""
        said.append((column, value, words.removeprefix(f'value out of range for column "{column}": ')))
    assert said == list(REFUSED)
    assert await store.rows("select 1 from state.t_1") == []


async def test_refused_where_a_value_changes_too(store: Store, writer: str) -> None:
    await _put(writer, "d", "'2020-01-01'")
    with pytest.raises(psycopg.errors.CheckViolation, match="out of range"):
        await store.run("update state.t_1 set d = 'infinity'")


async def test_a_views_values_come_checked(store: Store) -> None:
    view = ALL.model_copy(update={"kind": RelationKind.MATERIALIZED_VIEW})
    await store.tables.create(view, term=TERM)
    assert (
        await store.rows("select 1 from pg_constraint where conrelid = 'state.t_1'::regclass and contype = 'c'") == []
    )


async def test_text_is_compared_by_bytes_everywhere(store: Store) -> None:
    await store.tables.create(ALL, term=TERM)
    await store.tables.publish(DATABASE_GRAPH, Epoch(1), term=TERM, created=[ALL])
    collations = await store.rows(
        "select a.attname, c.collname from pg_attribute a join pg_collation c on c.oid = a.attcollation"
        " where a.attrelid in ('state.t_1'::regclass, 'live.\"all types\"'::regclass, 'public.\"all types\"'::regclass)"
    )
    assert sorted(collations) == [("t", "C")] * 3 + [("ta", "C")] * 3


async def test_null_is_a_key_like_any_other(store: Store) -> None:
    table = relation(2, "nullable", {"a": "text", "b": "integer"}, "a", "b")
    await store.tables.create(table, term=TERM)
    await store.run("insert into state.t_2 values (0, null, 1, 5)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        await store.run("insert into state.t_2 values (0, null, 1, 5)")
    await store.run("insert into state.t_2 values (0, null, 1, 6)")
