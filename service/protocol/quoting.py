"""Quote names and texts for Postgres."""

from collections.abc import Sequence


def quoted(name: str) -> str:
    """Return a name in double quotes, so that Postgres reads it exactly as it is."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """Return a text as a Postgres string constant."""
    return "'" + text.replace("'", "''") + "'"


def csv_field(text: str | None) -> str:
    """Return a field of Postgres's CSV: empty for NULL, otherwise quoted, so that an empty text differs from NULL."""
    return "" if text is None else '"' + text.replace('"', '""') + '"'


def array_literal(elements: Sequence[str | None]) -> str:
    """Return a Postgres array literal of these texts."""
    return "{" + ",".join("NULL" if text is None else _element(text) for text in elements) + "}"


def _element(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
