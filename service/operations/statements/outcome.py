"""Define the outcome of a SQL statement."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.protocol.ids import JobId
from service.protocol.relation import RelationKind

Columns = tuple[tuple[str, str], ...]
Rows = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a statement: a command tag, rows, notices and the new session variables.

    A column is a pair (name, Postgres type).
    """

    tag: str
    columns: Columns = ()
    rows: Rows = ()
    notices: tuple[str, ...] = ()
    session: Mapping[str, str] = field(default_factory=dict[str, str])
    truncated: bool = False
    job: JobId | None = None
    """The job of a CREATE. `background` says that it continues after the response."""
    background: bool = False


def tag(verb: str, kind: RelationKind) -> str:
    """Return the command tag for a verb and a kind of relation."""
    return f"{verb}_{kind.upper().replace(' ', '_')}"


def listed(names: Iterable[str]) -> Outcome:
    """Return the outcome of a SHOW that lists names."""
    return Outcome("SHOW", (("Name", "text"),), tuple((name,) for name in names))
