"""USING delta: the clauses that say in which Delta table the rows of a view, or of a followed table, lie."""

from service.domain.connectors import CONNECTOR
from service.domain.errors import Invalid
from service.protocol.delta import IN_A_LAKE, NAME
from service.sql.statements.target import Target, target_of
from service.sql.text.cursor import Cursor, column_list
from service.sql.text.options import Option, text_option


def accept_using(cursor: Cursor, what: str) -> dict[str, Option] | None:
    """Read USING delta with its clauses, and return the options that they stand for. None if there is no USING."""
    if not cursor.accept("using"):
        return None
    using = cursor.token
    if not (cursor.accept("delta") or cursor.accept("deltalake")):
        message = f"a {what} is USING delta, or without USING in Postgres: not {using.text}"
        raise Invalid(message, position=using.position)
    found = {CONNECTOR: text_option(CONNECTOR, using, NAME)}
    while True:
        place = cursor.token
        if cursor.accept("location"):
            option = Option("location", (cursor.advance(),), cursor.before.text, place.position)
        elif cursor.accept("partitioned", "by"):
            option = text_option("partition_by", place, ", ".join(column_list(cursor)))
        else:
            return found
        found[option.name] = option


def in_lake(using: dict[str, Option], every: dict[str, Option]) -> Target:
    """Return the Delta table of a statement, and take its options out of all that WITH gives. Raises Invalid."""
    mine = {name: every.pop(name) for name in IN_A_LAKE & every.keys()}
    if twice := using.keys() & mine.keys():
        raise Invalid(f"Duplicated option: {min(twice)}", position=mine[min(twice)].place)
    return target_of(using | mine)
