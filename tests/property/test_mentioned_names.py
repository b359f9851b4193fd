"""What a statement speaks of is among the names that it mentions, however it is quoted and whatever is around it."""

from hypothesis import example, given
from hypothesis import strategies as st

from service.domain.errors import Invalid
from service.sql.text.tokens import TokenKind, mentioned, tokenize

PIECES = st.sampled_from(
    ['"', '""', "'", "''", "$$", "$a$", "--", "/*", "*/", "\n", " ", ",", "(", ".", "é", "A", "b", "_1", "$", "9", "E'"]
)


@given(st.lists(PIECES, max_size=30).map("".join))
@example("""SELECT '5" wide', "Wide" FROM t""")
@example("SELECT 9_1é")
@example("""INSERT INTO "a""b" SELECT 1""")
@example("""SELECT $$ " $$ , "x", Ünited.Y /* " */ FROM "z" """)
def test_every_name_of_a_statement_is_mentioned(sql: str) -> None:
    try:
        tokens = tokenize(sql)
    except Invalid:
        return
    names = {token.value for token in tokens if token.kind in {TokenKind.NAME, TokenKind.QUOTED}}
    assert names <= mentioned(sql)
