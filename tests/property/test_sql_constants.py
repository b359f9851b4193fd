"""An INSERT of plain constants means what it means to the parser, refusals and their places included."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.domain.errors import Invalid, NotFound
from service.sql.dml.bind import BoundInsert, bind_insert
from service.sql.parse import parse
from service.sql.statements.dml import Insert
from service.sql.statements.tables import CreateTable, table_relation

CREATED = parse('create table t (id bigint primary key, b text not null, n numeric(12,2), "values (1" boolean)')
assert isinstance(CREATED, CreateTable)
RELATIONS = {"t": table_relation(CREATED)}

NUMBERS = st.one_of(
    st.integers().map(str), st.decimals(allow_nan=False, allow_infinity=False, places=3).map("{:f}".format)
)
STRINGS = st.text(max_size=6).map(lambda text: "'" + text.replace("'", "''") + "'")
WORDS = st.sampled_from(["null", "NULL", "true", "False"])
PLAIN = st.one_of(NUMBERS, STRINGS, WORDS)
OTHERS = st.sampled_from(
    ["1e5", ".5", "1.", "+1", "- 1", "--1", "0x1f", "1_000", "default", "e'\\''", "$$x$$", "'", "''''"]
)
SPACES = st.sampled_from(["", "", " ", "\n", "\t ", "\u00a0", "/**/"])
HEADS = st.sampled_from(
    [
        "insert into t values",
        "INSERT INTO public.t AS x Values",
        "insert into t (id, b) values",
        'insert into t (b, id, "values (1") values',
        "insert into t (b) values",
        "insert into t (id, id) values",
        "insert into u values",
        "insert into values values",
        "insert t values",
        "insert into t -- values (1)\n values",
        "with x as (select 1) insert into t values",
    ]
)


@st.composite
def statements(draw: st.DrawFn, cells: st.SearchStrategy[str]) -> str:
    def spaced(text: str) -> str:
        return draw(SPACES) + text + draw(SPACES)

    rows = draw(st.lists(st.lists(cells, max_size=4), min_size=1, max_size=3))
    lists = [spaced(f"({','.join(spaced(cell) for cell in row)})") for row in rows]
    end = draw(st.sampled_from(["", ";", " ;; ", "; select 1", ")", ",", " -- end"]))
    return spaced(draw(HEADS)) + ",".join(lists) + end


PARSED = "/**/"
"""Before a statement it says nothing, and leaves it to the parser."""


def meant(text: str, *, shift: int = 0) -> object:
    try:
        statement = parse(text)
        if not isinstance(statement, Insert):
            return statement
        return bind_insert(statement, RELATIONS)
    except (Invalid, NotFound) as error:
        place = error.position
        return type(error), str(error), None if place is None else place - shift


@given(st.one_of(statements(PLAIN), statements(st.one_of(PLAIN, OTHERS))))
@example("insert into t values (1, 'it''s', -1.50, TRUE), (2, '\\', null, false) ;")
@example("insert into t values (1, 'a', 1), (2, null, 1)")
@example("insert into t values (1, 'a'), (2)")
@example("insert into t values (1, 'a' 'b')")
@example("insert into t values (1, 'a\0')")
def test_constants_mean_what_they_mean_to_the_parser(text: str) -> None:
    assert meant(text) == meant(PARSED + text, shift=len(PARSED))


@pytest.mark.parametrize(
    "text",
    [
        "insert into t values (1, 'a')",
        """ INSERT INTO public."t"(id,\tb, "values (1")\n VALUES\n( 1 , 'it''s; --', NULL ),\n(-2,'',true) ; """,
    ],
)
def test_plain_constants_are_read_without_the_parser(text: str) -> None:
    statement = parse(text)
    assert isinstance(statement, Insert)
    assert statement.constants is not None
    assert isinstance(meant(text), BoundInsert)
