"""What a SQL statement gives back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.protocol.ids import JobId
from service.protocol.relation import RelationKind

Columns = tuple[tuple[str, str], ...]
Rows = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a statement gives: a command tag, rows with (name, Postgres type) columns, notices, the session from now
    on.
    """

    tag: str
    columns: Columns = ()
    rows: Rows = ()
    notices: tuple[str, ...] = ()
    session: Mapping[str, str] = field(default_factory=dict[str, str])
    truncated: bool = False
    job: JobId | None = None
    """The job that a CREATE made; `background` says that it goes on after the answer."""
    background: bool = False


def tag(verb: str, kind: RelationKind) -> str:
    """Return the command tag of a statement about a kind of relation."""
    return f"{verb}_{kind.upper().replace(' ', '_')}"


def listed(names: Iterable[str]) -> Outcome:
    """Return what a SHOW of names gives."""
    return Outcome("SHOW", (("Name", "text"),), tuple((name,) for name in names))
