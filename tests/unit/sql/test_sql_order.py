"""The backfill order as users write it: what it means, and the reference's words for what it may not say."""

import pytest

from service.domain.errors import Invalid, MetaError, NotFound
from service.protocol.relation import Relation
from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation
from service.sql.statements.views import CreateMaterializedView, ExplainBackfill
from service.sql.views.backfill_order import EDGES_MAX, Edges, bind_order, dot

NAMES = ("a", "b", "c", "d", "Odd Name", "unused")


def table(name: str) -> Relation:
    statement = parse(f'create table "{name}" (id int primary key)')
    assert isinstance(statement, CreateTable)
    return table_relation(statement)


RELATIONS = {name: table(name) for name in NAMES}
USED = ("b", "a", "c", "d", "a", "Odd Name")
HEAD = "create materialized view m with (backfill_order = "


def ordered(option: str) -> Edges:
    statement = parse(f"{HEAD}{option}) as select * from a")
    assert isinstance(statement, CreateMaterializedView)
    return bind_order(statement.order, USED, RELATIONS)


@pytest.mark.parametrize(
    ("option", "edges"),
    [
        ("DEFAULT", ()),
        ("none", ()),
        ("AUTO", ()),
        ("FIXED(a -> b)", (("a", "b"),)),
        ("fixed ( a->b,b  ->  c )", (("a", "b"), ("b", "c"))),
        ("FIXED(c -> a, b -> a)", (("c", "a"), ("b", "a"))),
        ('FIXED(public.A -> B, a -> "b")', (("a", "b"),)),
        ('FIXED("Odd Name" -> public."a")', (("Odd Name", "a"),)),
        ("FIXED(a -> b, a -> c, b -> d, c -> d)", (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"))),
    ],
)
def test_edges_between_relations(option: str, edges: Edges) -> None:
    assert ordered(option) == edges


def test_i13_an_order_has_so_many_edges_at_most() -> None:
    """One of 18,000 stalled the service for 2 s whenever it was read."""
    assert ordered(f"FIXED({', '.join(['a -> b'] * EDGES_MAX)})") == (("a", "b"),)
    with pytest.raises(Invalid, match="Backfill order strategy has more than 1000 edges"):
        ordered(f"FIXED({', '.join(['a -> b'] * (EDGES_MAX + 1))})")


@pytest.mark.parametrize(
    ("option", "kind", "message"),
    [
        ("FIXED(^nope -> a)", NotFound, 'table "nope" does not exist'),
        ("FIXED(a -> ^public.Nope)", NotFound, 'table or source "public.nope" does not exist'),
        (
            "FIXED(a -> ^unused)",
            Invalid,
            "Table or source 'unused' specified in backfill_order is not used in the query",
        ),
        (
            "FIXED(^public.UNUSED -> a)",
            Invalid,
            "Table or source 'public.UNUSED' specified in backfill_order is not used in the query",
        ),
        (
            'FIXED(^"unused" -> a)',
            Invalid,
            "Table or source '\"unused\"' specified in backfill_order is not used in the query",
        ),
        ("FIXED(^a -> a)", Invalid, "Backfill order strategy has a cycle"),
        ("FIXED(^a -> public.a)", Invalid, "Backfill order strategy has a cycle"),
        ("FIXED(^a -> b, b -> c, c -> a)", Invalid, "Backfill order strategy has a cycle"),
        ("FIXED(^d -> a, b -> c, c -> b)", Invalid, "Backfill order strategy has a cycle"),
        # Bind before used, used before cycle, wherever each stands.
        ("FIXED(a -> a, unused -> b, b -> ^nope)", NotFound, 'table "nope" does not exist'),
        (
            "FIXED(a -> a, b -> ^unused)",
            Invalid,
            "Table or source 'unused' specified in backfill_order is not used in the query",
        ),
    ],
)
def test_a_wrong_order_is_refused_at_its_place_in_the_words_of_the_reference(
    option: str, kind: type[MetaError], message: str
) -> None:
    with pytest.raises(kind) as error:
        ordered(option.replace("^", "", 1))
    assert str(error.value) == message
    assert isinstance(error.value, Invalid | NotFound)
    assert error.value.position == len(HEAD) + option.index("^") + 1


@pytest.mark.parametrize("option", ["FIXED()", "FIXED(a)", "FIXED(a ->)", "FIXED(a - > b)", "FIXED(a -> b", "AUTO b"])
def test_a_malformed_order_is_a_syntax_error(option: str) -> None:
    with pytest.raises(Invalid, match="syntax error"):
        ordered(option)


@pytest.mark.parametrize("options", ["backfill, format dot", "FORMAT DOT, BACKFILL"])
def test_explain_asks_for_the_order_of_a_view(options: str) -> None:
    statement = parse(f"EXPLAIN ({options}) create materialized view m as select * from a")
    assert isinstance(statement, ExplainBackfill)
    assert (statement.view.name, statement.view.order.edges) == ("m", ())


def test_an_order_is_printed_for_graphviz() -> None:
    assert dot(()) == ("digraph G {", "}")
    assert dot((("t2", "t1"), ("b", 'Say "a\\b"'))) == (
        "digraph G {",
        '  "public.b" -> "public.Say \\"a\\\\b\\"";',
        '  "public.t2" -> "public.t1";',
        "}",
    )
