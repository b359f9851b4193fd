"""`backfill_order = DEFAULT | NONE | AUTO | FIXED(a -> b, ...)`: with one scan all but FIXED mean the same."""

from collections.abc import Mapping, Sequence

from service.domain.errors import Invalid, NotFound
from service.protocol.relation import Relation
from service.sql.cursor import Cursor
from service.sql.statements import BackfillOrder
from service.sql.tokens import Token, TokenKind, syntax_error


def parse_order(tokens: Sequence[Token]) -> BackfillOrder:
    """Read the option's value."""
    cursor = Cursor("", (*tokens, Token(TokenKind.END, "", "", tokens[-1].end, tokens[-1].end)))
    if cursor.accept("default") or cursor.accept("none") or cursor.accept("auto"):
        cursor.expect_end()
        return BackfillOrder()
    cursor.expect("fixed")
    cursor.expect_symbol("(")
    edges = [_edge(cursor)]
    while cursor.accept_symbol(","):
        edges.append(_edge(cursor))
    cursor.expect_symbol(")")
    cursor.expect_end()
    return BackfillOrder(tuple(edges))


def bind_order(order: BackfillOrder, used: Sequence[str], relations: Mapping[str, Relation]) -> None:
    """Check an order over a query that scans the relations `used`. Raises in the reference's order: bind, used in
    query, cycle.
    """
    names = [name for edge in order.edges for name in edge]
    for name, position in names:
        if _bare(name) not in relations:
            what = "table or source" if "." in name else "table"
            raise NotFound(f'{what} "{name}" does not exist', kind="relation", position=position)
    for name, position in names:
        if _bare(name) not in used:
            message = f"Table or source '{name}' specified in backfill_order is not used in the query"
            raise Invalid(message, position=position)
    for before, after in order.edges:
        if _bare(before[0]) == _bare(after[0]):
            raise Invalid("Backfill order strategy has a cycle", position=before[1])
    if order.edges:
        raise Invalid("backfill_order = FIXED is not supported for several relations yet", position=names[0][1])


def _edge(cursor: Cursor) -> tuple[tuple[str, int], tuple[str, int]]:
    before = _name(cursor)
    dash = cursor.expect_symbol("-")
    arrow = cursor.expect_symbol(">")
    if arrow.start != dash.end:
        raise syntax_error(dash)
    return before, _name(cursor)


def _name(cursor: Cursor) -> tuple[str, int]:
    token = cursor.token
    name = cursor.relation()
    qualified = cursor.before is not token
    return (f"public.{name}" if qualified else name), token.position


def _bare(name: str) -> str:
    return name.removeprefix("public.")
