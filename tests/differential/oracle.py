"""Postgres's side: what each text answers over the rows of a world, and which rows a text cannot be asked of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from service.protocol.relation import Relation
from tests.differential.worlds import World, literal
from tests.support.stages_oracle import run

Rows = dict[int, tuple[str | None, ...]]
"""The values of a row as texts, by its id."""
_NO_SUCH: Final = "42"
"""SQLSTATEs of texts that mean nothing: no row is to blame."""


@dataclass(frozen=True)
class Asked:
    """What Postgres says of an expression over every row: errors by the id, or the reason why it means nothing."""

    meaningless: str | None = None
    errors: dict[int, str] = field(default_factory=dict[int, str])
    always: bool = False
    """Whether it fails without any row: Postgres computes constants beforehand."""


@dataclass
class Oracle:
    """A connection to a database with the table `t`."""

    connection: psycopg.Connection[tuple[Any, ...]]

    @classmethod
    def over(cls, connection: "psycopg.Connection[Any]", world: World) -> "Oracle":
        """Make the table, whose texts have the collation that the store gives them."""
        ddl = world.ddl.replace(" text,", ' text collate "C",')
        run(connection, f"set timezone = 'UTC'; set jit = off; {ddl}")
        for row in world.rows:
            values = ", ".join(literal(column, row.get(column.name)) for column in world.columns)
            run(connection, f"insert into t values ({values})")
        return cls(connection)

    def ask(self, expression: str, predicate: str | None = None) -> Asked:
        """Ask an expression of every row that satisfies a predicate."""
        condition = predicate or "true"
        try:
            run(self.connection, f"select ({expression})::text from t where {condition}")
        except psycopg.Error as error:
            if (error.sqlstate or "").startswith(_NO_SUCH):
                return Asked(meaningless=str(error).splitlines()[0])
            return Asked(errors=self._errors(expression, condition), always=self._always(expression))
        return Asked()

    def survivors(self, predicate: str) -> int:
        """Return how many rows satisfy a predicate."""
        return len(run(self.connection, f"select from t where {predicate}").fetchall())

    def _always(self, expression: str) -> bool:
        try:
            run(self.connection, f"select ({expression})::text from t where false")
        except psycopg.Error:
            return True
        return False

    def _errors(self, expression: str, condition: str) -> dict[int, str]:
        errors: dict[int, str] = {}
        for (row,) in run(self.connection, "select id from t order by 1").fetchall():
            # A row is picked before it is asked about.
            picked = f"(select * from t where id = {row} offset 0) t"
            try:
                run(self.connection, f"select ({expression})::text from {picked} where {condition}")
            except psycopg.Error as error:
                errors[row] = str(error).splitlines()[0]
        return errors

    def answer(self, query: str, target: Relation) -> Rows:
        """Return what a query answers, in the types of a view. Raises psycopg.Error."""
        listed = ", ".join(f'"{one.name}"::{one.type}::text' for one in target.visible)
        rows = run(self.connection, f"select id, {listed} from ({query}) q").fetchall()
        return {row[0]: row[1:] for row in rows}

    def read(self, rows: Sequence[tuple[str | None, ...]], target: Relation) -> Rows:
        """Return rows of texts as Postgres shows them once it has stored them."""
        columns = ", ".join(f'"{one.name}" {one.type}' for one in target.visible)
        run(self.connection, f"drop table if exists held; create temp table held ({columns})")
        with self.connection.cursor() as cursor:
            places = ", ".join(f"%s::{one.type}" for one in target.visible)
            cursor.executemany(f"insert into held values ({places})".encode(), rows)
        return self.answer("select * from held", target)
