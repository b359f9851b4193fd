"""The base of all statements. Every statement is a value of its own class, made by the parser of its family.

A family is a module of this package. It holds the classes of its statements, and `PARSERS`: what reads each, by the
words that it begins with. `service.sql.parse` lists the families.

Names are as Postgres would store them: unquoted ones are folded. They have no schema, because it can only be `public`.
"""

from collections.abc import Callable, Mapping

from service.sql.text.cursor import Cursor


class Statement:
    """A parsed statement."""

    __slots__ = ()


Parser = Callable[[Cursor], Statement]
Parsers = Mapping[tuple[str, ...], Parser | Statement]
"""The words that a statement begins with, and what parses the rest; or the statement, if the words are all of it."""
