"""Define the DML that a worker runs: the service checks it, the worker runs it in order, one savepoint per statement.

Each SQL text is one Postgres expression or query that `service.sql` prints from a parsed tree. The printer replaces
every relation by its view of alive rows (`live."name"`). The worker runs the text under a login that may do nothing
else, so the printed text is not the only fence.
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from service.protocol.ids import Bigint, Count, StatementId
from service.protocol.quoting import quoted
from service.protocol.relation import Relation


class _Statement(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: StatementId
    relation: Relation


class InsertValues(_Statement):
    """INSERT .. VALUES. `source` is a query that gives `columns` in order; other columns become NULL.

    An INSERT overwrites the row of an existing key. Of two rows with one key in the statement, the last one wins.
    """

    type: Literal["insert"] = "insert"
    columns: tuple[str, ...]
    source: str


class Update(_Statement):
    """UPDATE. `assignments` are (column, expression) over the table's own columns; a key column may be assigned.

    Here and in `Delete`, a subquery may refer to the changed row by the relation's own name, as an alias.
    """

    type: Literal["update"] = "update"
    assignments: tuple[tuple[str, str], ...]
    predicate: str | None = None


class Delete(_Statement):
    """DELETE of the rows that satisfy `predicate`, or of all rows if it is None."""

    type: Literal["delete"] = "delete"
    predicate: str | None = None


class InsertStaged(_Statement):
    """INSERT of a slice of staged rows, in `_row` order: `first <= _row < last` of the staging table.

    The rows were staged outside any epoch.
    """

    type: Literal["insert_staged"] = "insert_staged"
    columns: tuple[str, ...]
    first: int
    last: int
    row_bytes: int = 0
    """The mean size of a staged row."""


def staging_table(statement: StatementId) -> str:
    """Return the qualified name of a statement's staging table.

    Its columns are `_row`, which counts from 0, and the statement's columns.
    """
    return f"stage.s_{statement}"


def live_view(name: str) -> str:
    """Return the quoted, qualified name of a relation's view of alive rows, which DML reads."""
    return f"live.{quoted(name)}"


Statement = Annotated[InsertValues | Update | Delete | InsertStaged, Field(discriminator="type")]
STATEMENT: TypeAdapter[InsertValues | Update | Delete | InsertStaged] = TypeAdapter(Statement)


class StatementResult(BaseModel):
    """The result of a statement. If `error` is set, only this statement failed: it changed nothing and
    `affected` is 0.
    """

    model_config = ConfigDict(frozen=True)

    id: Bigint[StatementId]
    affected: Count
    error: str | None = None
    sqlstate: str | None = None


class DmlLimits(BaseModel):
    """Time limits for the DML of one epoch. `statement_ms` is the limit of a statement that is alone in its epoch."""

    model_config = ConfigDict(frozen=True)

    epoch_ms: int = Field(default=2_000, gt=0)
    statement_ms: int = Field(default=10_000, gt=0)
    patient: bool = True
    """Whether a statement that is alone in this epoch may use `statement_ms`; otherwise it gets its share of
    `epoch_ms`.
    """


class Unfinished(BaseModel):
    """Statements of an epoch that have no result and changed nothing. All of them wait for a later epoch."""

    model_config = ConfigDict(frozen=True)

    not_reached: tuple[Bigint[StatementId], ...] = ()
    """The epoch's time was used up before these statements had their share of it."""
    set_aside: tuple[Bigint[StatementId], ...] = ()
    """They took longer than a statement may take in a shared epoch, so each of them gets an epoch of its own."""


NOTHING_UNFINISHED: Final = Unfinished()
