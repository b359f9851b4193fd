"""CREATE INDEX, DROP INDEX and SHOW INDEXES are read as RisingWave writes them."""

import pytest

from service.domain.errors import Invalid
from service.protocol.relation import RelationKind
from service.sql.parse import parse
from service.sql.statements.indexes import CreateIndex, DropIndex, ShowIndexes
from service.sql.statements.relations import ShowCreate


def index(text: str) -> CreateIndex:
    statement = parse(text)
    assert isinstance(statement, CreateIndex)
    return statement


def test_an_index_has_a_key_and_columns_beside_it() -> None:
    made = index(
        'create index if not exists I on public."T t" (a, "B b" desc nulls first, c asc nulls last, a)'
        ' include (d, a, e) distributed by (a, "B b")'
    )
    assert (made.name, made.relation, made.if_not_exists, made.at) == ("i", "T t", True, 33)
    assert [(part.name, part.descending) for part in made.key] == [("a", False), ("B b", True), ("c", False)]
    assert (made.included, made.distributed) == (("d", "e"), ("a", "B b"))
    assert made.places["d"] == made.text.index("d, a") + 1


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("create index i on t (lower(v))", "an index has columns, not expressions", "lower"),
        ("create index i on t (a + 1)", "an index has columns, not expressions", "a +"),
        ("create index i on t ((a))", "an index has columns, not expressions", "(a)"),
        ("create index i on t (1)", "an index has columns, not expressions", "1"),
        ("create index i on t (a -> 'k')", "an index has columns, not expressions", "a ->"),
        ("create index i on t using btree (a)", "USING is not supported", "using"),
        ("create unique index i on t (a)", "CREATE UNIQUE INDEX is not supported", "index"),
        ("create index i on t (a) distributed by (b)", "Distributed by columns should be a prefix", "distributed"),
        ("create index i on t (a nulls first)", "NULL is the largest value", "nulls"),
        ("create index i on t (a desc nulls last)", "NULL is the largest value", "nulls"),
        ("drop index i, j", "DROP takes one index", ","),
        ("create index i on other.t (a)", 'schema "other" does not exist', "other"),
    ],
)
def test_what_no_index_can_be_is_refused_in_plain_words(text: str, message: str, place: str) -> None:
    with pytest.raises(Invalid, match=message) as refused:
        parse(text)
    assert refused.value.position == text.index(place) + 1


@pytest.mark.parametrize(
    "text",
    [
        "create index on t (a)",
        "create index i on t",
        "create index i on t ()",
        "create index i on t (a,)",
        "create index i on t (a) include",
        "create index i on t (a) where a > 1",
        'create index i on t (a collate "C")',
        "drop index",
        "show indexes from",
    ],
)
def test_what_is_no_statement_is_refused_at_its_place(text: str) -> None:
    with pytest.raises(Invalid, match="syntax error") as refused:
        parse(text)
    assert refused.value.position is not None


def test_the_other_statements_of_indexes() -> None:
    assert parse("drop index if exists public.I cascade") == DropIndex("i", if_exists=True)
    assert parse("drop index i restrict") == DropIndex("i")
    assert parse("show indexes from T;") == ShowIndexes("t")
    assert parse("show create index i") == ShowCreate(RelationKind.INDEX, "i")
