"""Postgres's side: what each text answers over the rows of an epoch, and which rows a text cannot be asked of."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from service.protocol.relation import Relation, state_table
from tests.differential.worlds import World, literal, name_of

Rows = Counter[tuple[str | None, ...]]
_NO_SUCH: Final = "42"
"""SQLSTATEs of texts that mean nothing: no row is to blame."""


@dataclass(frozen=True)
class Asked:
    """What Postgres says of an expression over every row that ever is: errors by the number of the state, from 1, or
    the reason why it means nothing.
    """

    meaningless: str | None = None
    errors: dict[int, str] = field(default_factory=dict[int, str])
    always: bool = False
    """Whether it fails without any row: Postgres computes constants beforehand."""


@dataclass
class Oracle:
    """A connection that sees the upstream as `t`."""

    connection: psycopg.Connection[tuple[Any, ...]]
    upstream: Relation

    @classmethod
    def over(cls, url: str, world: World, upstream: Relation) -> "Oracle":
        """Connect, and put every row that ever is where it can be asked about."""
        connection = psycopg.connect(url, autocommit=True)
        names = ", ".join(name_of(column.name) for column in world.columns)
        for statement in (
            "set timezone = 'UTC'",
            "set jit = off",
            f"create temp table t as select {names} from {state_table(upstream.id)} with no data",
            "create temp table states as select row_number() over () as _state, * from t",
        ):
            connection.execute(_bytes(statement))
        oracle = cls(connection, upstream)
        for number, row in enumerate(world.states(), 1):
            values = ", ".join(literal(column, row.get(column.name)) for column in world.columns)
            connection.execute(_bytes(f"insert into states values ({number}, {values})"))
        return oracle

    def close(self) -> None:
        """Disconnect."""
        self.connection.close()

    def at(self, epoch: int) -> None:
        """Show the upstream as it is at an epoch."""
        names = ", ".join('"' + c.name.replace('"', '""') + '"' for c in self.upstream.visible)
        table = state_table(self.upstream.id)
        self.connection.execute(b"truncate t")
        alive = f"_from <= {epoch} and _to > {epoch}"
        self.connection.execute(_bytes(f"insert into t select {names} from {table} where {alive}"))

    def ask(self, expression: str, predicate: str | None = None) -> Asked:
        """Ask an expression of every state that satisfies a predicate."""
        text, condition = f"select ({expression})::text from states t", predicate or "true"
        try:
            self.connection.execute(_bytes(f"{text} where {condition}"))
        except psycopg.Error as error:
            if (error.sqlstate or "").startswith(_NO_SUCH):
                return Asked(meaningless=str(error).splitlines()[0])
            return Asked(errors=self._errors(expression, condition), always=self._always(expression))
        return Asked()

    def survivors(self, predicate: str) -> int:
        """Return how many states satisfy a predicate."""
        row = self.connection.execute(_bytes(f"select count(*) from states where {predicate}")).fetchone()
        assert row is not None
        return row[0]

    def _always(self, expression: str) -> bool:
        try:
            self.connection.execute(_bytes(f"select ({expression})::text from states t where false"))
        except psycopg.Error:
            return True
        return False

    def _errors(self, expression: str, condition: str) -> dict[int, str]:
        errors: dict[int, str] = {}
        for (state,) in self.connection.execute(b"select _state from states order by 1").fetchall():
            # A state is picked before it is asked about.
            picked = f"(select * from states where _state = {state} offset 0) t"
            try:
                self.connection.execute(_bytes(f"select ({expression})::text from {picked} where {condition}"))
            except psycopg.Error as error:
                errors[state] = str(error).splitlines()[0]
        return errors

    def answer(self, query: str, types: Sequence[str]) -> Rows:
        """Return what a query answers, as texts. Raises psycopg.Error."""
        names = ["id", *(f"c{place}" for place in range(len(types) - 1))]
        listed = ", ".join(_text(name, kind) for name, kind in zip(names, types, strict=True))
        return Counter(self.connection.execute(_bytes(f"select {listed} from ({query}) q")).fetchall())

    def types(self, query: str) -> list[str]:
        """Return the types of a query's columns, without their precision."""
        found = self.connection.execute(_bytes(f"select * from ({query}) q limit 0")).description or []
        oids = [column.type_code for column in found]
        named = dict(
            self.connection.execute(
                "select oid, format_type(oid, null) from pg_type where oid = any(%s)", [oids]
            ).fetchall()
        )
        return [named[oid] for oid in oids]

    def held(self, view: Relation, names: Sequence[str], epoch: int) -> Rows:
        """Return what a view holds at an epoch."""
        listed = ", ".join(_text(f'"{name}"', view.column(name).type.name) for name in names)
        alive = f"_from <= {epoch} and _to > {epoch}"
        return Counter(
            self.connection.execute(_bytes(f"select {listed} from {state_table(view.id)} where {alive}")).fetchall()
        )


def _text(name: str, kind: str) -> str:
    # Zeros at the end of a number are not compared: a column of a view has one scale for all its rows.
    return f"trim_scale({name})::text" if kind == "numeric" else f"{name}::text"


def _bytes(text: str) -> Any:
    """Psycopg takes composed texts as bytes only: a `%` in them is no parameter."""
    return text.encode()
