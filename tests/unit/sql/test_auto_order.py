"""The backfill order AUTO: the reference's examples, and what a view may hold besides."""

import pytest

from service.sql.queries.auto_order import auto_order
from service.sql.text.tokens import tokenize
from service.sql.text.tree import Tree, parse_tree
from service.sql.views.backfill_order import acyclic


def tree(text: str) -> Tree:
    return parse_tree(text, tokenize(text))


VIEWS = {"pair": tree("select * from f2 join d2 using (k)")}


def edges(text: str) -> set[str]:
    return {f"{before}->{after}" for before, after in auto_order(tree(text), VIEWS)}


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("select * from t1", ""),
        ("select * from t1 join t2 using (k)", "t2->t1"),
        ("select * from t1, t2, t3 where t1.k = t2.k", "t2->t1 t3->t1"),
        (
            (
                "select * from ((f1 join d1 using (k)) join (f2 join d2 using (k)) using (k))"
                " join ((f3 join d3 using (k)) join (f4 join d4 using (k)) using (k)) using (k)"
            ),
            "d1->f1 d2->f2 d3->f3 d4->f4 f2->f1 f3->f1 f4->f3",
        ),
        (
            (
                "select * from (select * from f1 join d1 using (k) union all select * from f2 join d2 using (k)) a"
                " join (select * from f3 join d3 using (k) union all select * from f4 join d4 using (k)) b using (k)"
            ),
            "d1->f1 d2->f2 d3->f3 d4->f4 f3->f1 f3->f2 f4->f1 f4->f2",
        ),
        ("select * from (b left join (d join e using (k)) using (k)) right join c using (k)", "e->d d->b c->b"),
        ("select k, count(*) from (select * from t1 join t2 using (k)) s group by k order by 2 limit 3", "t2->t1"),
        ("select * from f1 join pair using (k)", "d2->f2 f2->f1"),
        ("with s as (select * from t2 join t3 using (k)) select * from t1 join s using (k)", "t3->t2 t2->t1"),
        ("select * from t1 where exists (select from t2 where t2.k = t1.k)", "t2->t1"),
        ("select (select max(k) from t3) from t1 where k not in (select k from t2) and v > 1", "t2->t1 t3->t1"),
        ("select k from t1 except select k from t2", "t2->t1"),
        ("select k from t1 union select k from t2", ""),
    ],
)
def test_the_other_sides_come_first(query: str, wanted: str) -> None:
    assert edges(query) == set(wanted.split())


@pytest.mark.parametrize(
    "query",
    [
        "select * from t1 a join t1 b on a.k = b.v",
        "with s as (select * from t1 join t2 using (k)) select * from t2 join s using (k)",
    ],
)
def test_a_relation_on_both_sides_makes_a_cycle(query: str) -> None:
    assert not acyclic(auto_order(tree(query), VIEWS))
