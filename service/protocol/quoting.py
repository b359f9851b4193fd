"""Names and texts as they have to be written in a statement for Postgres."""


def quoted(name: str) -> str:
    """Return a name that is read as it is."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """Return a text as a constant."""
    return "'" + text.replace("'", "''") + "'"
