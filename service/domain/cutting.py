"""Say how much of a statement is kept and listed. One text is shown whole, and lists, events and the audit trail show
the beginning of each.
"""

from typing import Final

KEPT_CHARACTERS: Final = 2_000
"""The length to which a text is cut. The catalog has the whole text of what was created."""
MARK: Final = "…"
"""What a cut text ends with."""
DEFINITION_BYTES_MAX: Final = 256 << 10
"""The largest statement that defines or changes an object. Its text is kept, and read with its object."""
ALTERED_BYTES_MAX: Final = 4 * DEFINITION_BYTES_MAX
"""The largest definition of a table, with the statements that have altered it."""


def cut(text: str) -> str:
    """Return the beginning of a long text, with the mark, and a short one as it is."""
    return text if len(text) <= KEPT_CHARACTERS else text[:KEPT_CHARACTERS] + MARK


def is_cut(text: str) -> bool:
    """Return whether a text of a list is only the beginning of what it stands for."""
    return len(text) > KEPT_CHARACTERS
