"""Names and texts as they have to be written in a statement for Postgres."""

from collections.abc import Sequence


def quoted(name: str) -> str:
    """Return a name that is read as it is."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """Return a text as a constant."""
    return "'" + text.replace("'", "''") + "'"


def csv_field(text: str | None) -> str:
    """Return a field of Postgres's CSV: empty for NULL, else quoted, so that an empty text stays one."""
    return "" if text is None else '"' + text.replace('"', '""') + '"'


def array_literal(elements: Sequence[str | None]) -> str:
    """Return a Postgres array of these texts."""
    return "{" + ",".join("NULL" if text is None else _element(text) for text in elements) + "}"


def _element(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
