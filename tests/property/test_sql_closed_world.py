"""Whatever is written, a statement is refused in words or becomes a value, and only the allow-list reaches Spark."""

import re
from collections.abc import Callable, Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlglot.errors import SqlglotError

from service.domain.errors import Conflict, Invalid, NotFound
from service.protocol.relation import Relation
from service.sql.dml.bind import bind_delete, bind_insert, bind_update
from service.sql.expressions.functions import FUNCTIONS
from service.sql.parse import parse
from service.sql.queries.audit import WORDS, UnsafeError, audit
from service.sql.queries.plan import plan_query
from service.sql.statements.dml import Delete, Insert, Update
from service.sql.statements.views import CreateMaterializedView
from service.sql.text.tree import Tree
from tests.support.expressions import Bound, bound_draft, query_of, table

RELATIONS: Mapping[str, Relation] = {
    "t": table(
        'create table t (id bigint primary key, a int, b text not null, d double precision, j jsonb, "Q q" text)'
    )
}
STAR = query_of("select * from w")


def understood(text: str) -> Bound | None:
    """Read a statement, and bind it. Raises nothing but refusals, which give None, as do statements that are no views.

    Of a view, which may also be one of several stages, all expressions over the table are bound for Spark and audited.
    """
    try:
        match parse(text):
            case CreateMaterializedView() as statement:
                return _of_view(statement.query)
            case Insert() as statement:
                bind_insert(statement, RELATIONS)
            case Update() as statement:
                bind_update(statement, RELATIONS)
            case Delete() as statement:
                bind_delete(statement, RELATIONS)
            case _:
                pass
    except (Invalid, NotFound) as error:
        _check_refusal(error, text)
    except Conflict:
        pass
    return None


def _of_view(query: Tree) -> Bound | None:
    """Return the bound expressions of a projection of the table, or None for any other view.

    Read through a logical view of it, it says the same, and Postgres knows whether names and types are right.
    """
    names = [f"c{place}" for place in range(len(query.root.expressions))]
    first, *others = plan_query(query, RELATIONS, {}, names)
    if others or first.grouping is not None or first.partition is not None or len(first.joins[0].inputs) > 1:
        return None
    count = first.visible
    try:
        found = bound_draft(first, RELATIONS["t"], count)
    except (Invalid, NotFound, SqlglotError, RecursionError, ValueError):
        return None  # the store computes it
    labels = [output.alias_or_name for output in query.root.expressions]
    if len(set(labels)) == len(labels) == count and all(labels) and "*" not in labels:
        (through,) = plan_query(STAR, RELATIONS, {"w": query}, names)
        again = bound_draft(through, RELATIONS["t"], count)
        assert (again.texts, again.conditions) == (found.texts, found.conditions)
    return found


def _check_refusal(error: Invalid | NotFound, text: str) -> None:
    assert error.message
    assert error.position is None or 1 <= error.position <= len(text) + 1, (text, error.position)


PIECES = st.sampled_from(
    r"""select from where as or and not null is in between like case when then else end cast ( ) [ ] { } , . ; : :: =
    < > - -> ->> + * / % ^ | || & # ~ ! @ ? $ $1 $$ ` ' " '' "" '${x}' "${x}" ${env:HOME} 1 1.5 1e9999 0x1 .5
    -- /* */ /*+ t a b d j id x "Q" 'a' 'it''s' E'\n' U&'\0061' interval'1d' date'2024-01-01' array true
    default values insert into update set delete with create table materialized view m primary key
    numeric(10,2) int text upper( coalesce( extract( reflect( sum( count(*) over () exists( any( substring(
    trim( position( overlay( row( interval' \ \' é 🐎 at time zone filter within group union all order by limit
    for recursive lateral join on using tablesample escape collate distinct nulls
    """.split()  # noqa: SIM905 - a list of words reads best as words
)
HEAD = "create materialized view m as select"
TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(PIECES, max_size=25).map(" ".join),
    st.lists(PIECES, max_size=25).map("".join),
    st.lists(PIECES, max_size=12).map(lambda parts: f"{HEAD} {' '.join(parts)} from t"),
    st.lists(PIECES, max_size=12).map(
        lambda parts: f"create materialized view m as select id from t where {' '.join(parts)}"
    ),
    st.lists(PIECES, max_size=12).map(lambda parts: f"insert into t values ({' '.join(parts)})"),
    st.lists(PIECES, max_size=12).map(lambda parts: f"update t set a = {' '.join(parts)}"),
    st.lists(PIECES, max_size=12).map(lambda parts: f"delete from t where {' '.join(parts)}"),
    st.lists(PIECES, max_size=12).map(lambda parts: f"create table u ({' '.join(parts)})"),
)


@settings(max_examples=200, deadline=None)
@given(TEXTS)
@example("create materialized view m as select a.5 as x from t")
@example("create materialized view m as select j -> from t")
@example("create materialized view m as select id from t where ->> 'k'")
@example("create materialized view m as select " + "-" * 3 + "a from t")
@example("create materialized view m as select a " + "+ a " * 1000 + "from t")
@example("create materialized view m as select " + "not " * 1000 + "true as x from t")
@example("create materialized view m as select " + "case when true then " * 500 + "1" + " end" * 500 + " as x from t")
@example("insert into t values (" + "-" * 1 + "- " * 1000 + "1)")
@example("select " + "1 + " * 2000 + "1")
@example("delete from t where " + "id = 1 or " * 1000 + "false")
def test_any_text_is_refused_in_words_or_understood(text: str) -> None:
    understood(text)


ALLOWED = {name for name, row in FUNCTIONS.items() if row.overloads or row.binder or row.reason}
# Names with a syntax of their own, so that they are known to the parser even in quotes or without.
SYNTAX = {"cast", "extract", "overlay", "position", "substring", "trim", "array", "case", "any", "interval"}
NAMES = st.one_of(
    st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True),
    st.sampled_from(
        """reflect java_method try_reflect input_file_name input_file_block_start current_user session_user version rand
    randn random uuid shuffle now current_timestamp localtimestamp unix_timestamp spark_partition_id explode
    posexplode monotonically_increasing_id inline stack json_tuple from_json schema_of_json xpath parse_url
    read_files aes_decrypt secret current_catalog current_database try_cast raise_error assert_true
    unix_micros sequence transform regexp_replace rlike hash xxhash64 crc32 sha2 date_format
    to_char nextval pg_sleep set_config
    """.split()  # noqa: SIM905 - a list of words reads best as words
    ),
)
GAPS = st.sampled_from(["", " ", "\n", "/* x */", "-- y\n", "/*+ hint */", "\t"])
CASES = st.sampled_from([str.lower, str.upper, str.title])
ARGUMENTS = st.lists(st.sampled_from(["a", "b", "'x'", "1", "null", "t.b", "*"]), max_size=3).map(", ".join)


@settings(max_examples=150, deadline=None)
@given(NAMES, GAPS, CASES, ARGUMENTS, st.booleans())
@example("rlike", "", str.lower, "a", False)
@example("regexp", " ", str.upper, "a", False)
def test_a_function_outside_the_allow_list_never_passes(
    name: str, gap: str, spell: Callable[[str], str], arguments: str, quoted: bool
) -> None:
    written = f'"{name}"' if quoted else spell(name)
    query = understood(f"create materialized view m as select {written}{gap}({arguments}) as x from t")
    if name not in ALLOWED and name not in SYNTAX:
        assert query is None, query


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("'\"\\`$ {}a-*/;()\nné🐎%_!")), max_size=12))
def test_a_literal_stays_one_literal(text: str) -> None:
    written = "'" + text.replace("'", "''") + "'"
    query = understood(f"create materialized view m as select {written} as x, b from t where b = {written}")
    if "${" in text:
        assert query is None
        return
    assert query is not None
    shown = query.texts[0]
    assert re.fullmatch(r"'(?:[^'\\]|\\.)*'", shown, re.DOTALL)
    unescaped = re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r", "t": "\t"}.get(found[1], found[1]), shown[1:-1])
    assert unescaped == text
    assert query.conditions == (f"(`b` = {shown})",)


@pytest.mark.parametrize(
    "sql",
    [
        "reflect('a', 'b')",
        "upper(`nope`)",
        "`a`; drop",
        "a",
        "'x' -- y",
        "'${x}'",
        "(select 1)",
        "`a`.`b`",
        "transform(`a`, x -> x)",
        "`a` /* x */",
        "'unterminated",
        "1 as y",
        "from `a`, parquet.`/etc/passwd`",
    ],
)
def test_the_second_look_sees_what_must_not_leave(sql: str) -> None:
    with pytest.raises(UnsafeError):
        audit(sql, {column.name for column in RELATIONS["t"].columns})


def test_no_word_that_may_leave_is_dangerous() -> None:
    dangerous = {"reflect", "java_method", "try_reflect", "select", "transform", "table", "using", "values", "lateral"}
    assert not dangerous & WORDS
