"""DML as the worker runs it: checked by the service, executed in order inside the epoch, a savepoint each.

Every SQL text here is one Postgres expression or query printed by `service.sql` from a parsed tree, with each
relation it reads rewritten to that relation's view of alive rows (`live."name"`). The worker runs it under a login
that may do nothing else, so that the printed text is not the only fence.
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
    """INSERT .. VALUES. `source` is a query giving `columns` in order; other columns are NULL. An existing key is
    overwritten; of two rows with one key in the statement the last wins.
    """

    type: Literal["insert"] = "insert"
    columns: tuple[str, ...]
    source: str


class Update(_Statement):
    """UPDATE. `assignments` are (column, expression) over the table's own columns; a key column may be assigned.

    Here and in `Delete` a subquery may name the row that is changed by the relation's own name, as an alias.
    """

    type: Literal["update"] = "update"
    assignments: tuple[tuple[str, str], ...]
    predicate: str | None = None


class Delete(_Statement):
    """DELETE of the rows for which `predicate` holds, or of all."""

    type: Literal["delete"] = "delete"
    predicate: str | None = None


class InsertStaged(_Statement):
    """A slice of rows that were staged outside any epoch: `first <= _row < last` of the staging table, in `_row`
    order.
    """

    type: Literal["insert_staged"] = "insert_staged"
    columns: tuple[str, ...]
    first: int
    last: int


def staging_table(statement: StatementId) -> str:
    """Return the qualified name of a statement's staging table: `_row`, which counts from 0, and the statement's
    columns.
    """
    return f"stage.s_{statement}"


def live_view(name: str) -> str:
    """Return the quoted, qualified name of a relation's view of alive rows, for DML."""
    return f"live.{quoted(name)}"


Statement = Annotated[InsertValues | Update | Delete | InsertStaged, Field(discriminator="type")]
STATEMENT: TypeAdapter[InsertValues | Update | Delete | InsertStaged] = TypeAdapter(Statement)


class StatementResult(BaseModel):
    """What became of a statement. `error` set: it failed alone and changed nothing; `affected` is 0 then."""

    model_config = ConfigDict(frozen=True)

    id: Bigint[StatementId]
    affected: Count
    error: str | None = None
    sqlstate: str | None = None


class DmlLimits(BaseModel):
    """How long the DML of one epoch may take. `statement_ms` bounds a statement that is alone in its epoch."""

    model_config = ConfigDict(frozen=True)

    epoch_ms: int = Field(default=2_000, gt=0)
    statement_ms: int = Field(default=10_000, gt=0)
    patient: bool = True
    """Whether a statement may use `statement_ms` now; if not, it has its share of `epoch_ms` though it is alone."""


class Unfinished(BaseModel):
    """Statements of an epoch that have no result and have changed nothing. Both kinds wait for a later epoch."""

    model_config = ConfigDict(frozen=True)

    not_reached: tuple[Bigint[StatementId], ...] = ()
    """The epoch's time was used up before they had their share of it."""
    set_aside: tuple[Bigint[StatementId], ...] = ()
    """They took longer than a statement may in an epoch that it shares with others: each gets an epoch of its own."""


NOTHING_UNFINISHED: Final = Unfinished()
