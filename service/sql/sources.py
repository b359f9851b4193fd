"""CREATE SOURCE: its options, each with its place, and the statement as it may be shown."""

from service.domain.errors import Invalid
from service.domain.source import OPTIONS, PASSWORD, source_options
from service.sql.cursor import Cursor
from service.sql.options import Option, read_options
from service.sql.secrets import discreet
from service.sql.statements import CreateSource
from service.sql.tokens import TokenKind

HIDDEN = "'********'"
"""What is shown in the place of a password."""


def parse_create_source(cursor: Cursor) -> CreateSource:
    """Read what follows CREATE SOURCE."""
    with discreet(cursor):
        if_not_exists = cursor.accept("if", "not", "exists")
        name = cursor.relation()
        cursor.expect("with")
        options = read_options(cursor, known=OPTIONS)
        cursor.expect_end()
        place = cursor.before.position
        if PASSWORD not in options:
            raise Invalid(f'option "{PASSWORD}" is missing', position=place)
        given = {one.name: one.string() for one in options.values() if one.name != PASSWORD}
        positions = {one.name: one.position for one in options.values()}
        try:
            source_options(given)
        except Invalid as error:
            raise Invalid(error.message, position=positions.get(error.pointer or "", place)) from None
        secret, password = _password(options[PASSWORD])
        text = _shown(cursor.text, options[PASSWORD], hidden=secret is None)
        return CreateSource(name, given, text, secret, password, if_not_exists, positions)


def _password(option: Option) -> tuple[str | None, str | None]:
    """Return the name of a secret, or a password."""
    first = option.tokens[0]
    if first.is_word("secret") and len(option.tokens) == 2 and option.tokens[1].kind in _NAMES:
        return option.tokens[1].value, None
    if len(option.tokens) != 1 or first.kind is not TokenKind.STRING or not first.value:
        message = f'option "{PASSWORD}" takes a text that is not empty, or SECRET and a secret\'s name'
        raise Invalid(message, position=option.position)
    return None, first.value


def _shown(text: str, option: Option, *, hidden: bool) -> str:
    if not hidden:
        return text.strip()
    start, end = option.tokens[0].start, option.tokens[-1].end
    return (text[:start] + HIDDEN + text[end:]).strip()


_NAMES = (TokenKind.NAME, TokenKind.QUOTED)
