"""Watch the transactions of a meta store, and say which of them lock rows out of order.

The locks follow from the statements that SQLAlchemy sends, and from the foreign keys of the tables. Which rows are
locked is not known, except for the keys that a statement names.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import Connection, Delete, Engine, Insert, Select, Table, Update, event
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BinaryExpression, BindParameter
from sqlalchemy.sql.selectable import CTE

from service.meta_store.schema.all_tables import METADATA
from service.meta_store.schema.lock_order import (
    DELETED_LAST,
    LOCK_ORDER,
    LOCKED_FOR_UPDATE,
    RELATION_ITSELF,
    SINGLE_WRITER,
)
from service.meta_store.stores import PostgresStores

RANK: Final = {name: rank for rank, name in enumerate(LOCK_ORDER)}
REFERRED: Final = {key.column.table.name for table in METADATA.tables.values() for key in table.foreign_keys}
KEY_SHARE: Final = "KEY SHARE"
SKIPS: Final = "SKIP LOCKED"
_PUT_AFTER: Final = {("graph", "snapshot_backfill")}
"""A Pause is queued in the database graph before it is known which partial graphs get it. KEY SHARE of the former waits
only for a job that begins, which has no row of the latter yet.
"""


@dataclass(frozen=True)
class Lock:
    """What a statement locks: rows of a table, in a mode. `key` are the values of the primary key, if it names them."""

    table: str
    mode: str
    key: tuple[Any, ...] | None = None


def locks_of(statement: Any, parameters: Mapping[str, Any]) -> list[Lock]:
    """Return the locks of a statement in the order in which it takes them."""
    found = [lock for part in _parts(statement) for lock in _locks(part, parameters)]
    if isinstance(statement, Update) and len(_parts(statement)) > 1:
        # Postgres chooses which of several tables of one statement comes first.
        return sorted(found, key=lambda lock: RANK.get(lock.table, 0))
    return found


def _parts(statement: Any) -> list[Any]:
    """Return the statements within a statement, the inner ones first."""
    parts: list[Any] = []
    for one in visitors.iterate(statement):
        if isinstance(one, CTE):
            parts.append(one.element)
        elif isinstance(table := getattr(one, "table", None), CTE):
            parts.append(table.element)
        elif isinstance(one, Select) and one is not statement:
            parts.append(one)
    parts.extend(cte.element for cte in _inner(statement, "_independent_ctes") or ())
    kept = {id(one): one for one in parts if not isinstance(one, Select) or _inner(one, "_for_update_arg") is not None}
    return [*kept.values(), statement]


def _locks(part: Any, parameters: Mapping[str, Any]) -> Iterator[Lock]:
    match part:
        case Insert(table=Table() as table):
            if _inner(part, "_post_values_clause") is not None:
                yield Lock(table.name, "INSERT", _inserted(table, part, parameters))
            yield from _referred(table)
        case Update(table=Table() as table):
            yield Lock(table.name, "NO KEY UPDATE", _named(table, _inner(part, "_where_criteria"), parameters))
            yield from _referred(table, {getattr(one, "name", one) for one in _inner(part, "_values") or ()})
        case Delete(table=Table() as table):
            yield Lock(table.name, "DELETE", _named(table, _inner(part, "_where_criteria"), parameters))
        case Select() if _inner(part, "_for_update_arg") is not None:
            mode = _mode(_inner(part, "_for_update_arg"))
            for table in _locked(part, _inner(part, "_for_update_arg")):
                name = RELATION_ITSELF if table.name == "relation" else table.name
                yield Lock(name, mode, _named(table, _inner(part, "_where_criteria"), parameters))
        case _:
            return


def _inner(statement: object, name: str) -> Any:
    """Return what SQLAlchemy keeps of a statement and has no public name for."""
    return getattr(statement, name, None)


def _mode(arg: Any) -> str:
    if arg.skip_locked:
        return SKIPS
    strength = ("KEY SHARE" if arg.key_share else "SHARE") if arg.read else "UPDATE"
    return "NO KEY UPDATE" if arg.key_share and not arg.read else strength


def _locked(part: Select[Any], arg: Any) -> list[Table]:
    """Return the tables of FOR .. OF, or all of the FROM list."""
    of = [getattr(one, "table", one) for one in arg.of or ()]
    chosen = of or [one for source in part.get_final_froms() for one in visitors.iterate(source)]
    return list(dict.fromkeys(one for one in chosen if isinstance(one, Table)))


def _referred(table: Table, columns: set[str] | None = None) -> Iterator[Lock]:
    """Yield what the foreign keys of new values lock."""
    for key in sorted(table.foreign_keys, key=lambda one: one.parent.name):
        target = key.column.table.name
        if (columns is None or key.parent.name in columns) and target in LOCKED_FOR_UPDATE - {"job"}:
            yield Lock(target, KEY_SHARE)


def _named(table: Table, criteria: Any, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the primary key if each of its columns is compared with a value."""
    values: dict[str, Any] = {}
    for condition in criteria:
        for one in visitors.iterate(condition):
            if not isinstance(one, BinaryExpression) or not isinstance(one.right, BindParameter):
                continue
            if one.operator.__name__ == "eq" and getattr(one.left, "table", None) is table:
                values[str(_inner(one.left, "name"))] = parameters.get(one.right.key, one.right.value)
    return _key(table, values)


def _inserted(table: Table, statement: object, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
    values: dict[str, Any] = {}
    for column, value in (_inner(statement, "_values") or {}).items():
        binds = [one for one in visitors.iterate(value) if isinstance(one, BindParameter)]
        if len(binds) == 1:
            values[getattr(column, "name", column)] = parameters.get(binds[0].key, binds[0].value)
    return _key(table, values)


def _key(table: Table, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
    names = [column.name for column in table.primary_key]
    return tuple(values[name] for name in names) if all(name in values for name in names) else None


@dataclass
class Watched:
    """A transaction: what it has locked so far, and what it did out of order."""

    held: dict[str, Lock] = field(default_factory=dict[str, Lock])
    wrong: list[str] = field(default_factory=list[str])

    def lock(self, lock: Lock) -> None:
        """Record a lock, and whether it comes out of order."""
        if lock.table in SINGLE_WRITER or (lock.mode == "DELETE" and lock.table in DELETED_LAST):
            return
        if (lock.mode == "UPDATE" and lock.table in REFERRED - LOCKED_FOR_UPDATE) or (
            lock.table == RELATION_ITSELF and lock.mode == "UPDATE"
        ):
            self.wrong.append(f"{lock.table} is locked FOR UPDATE, though foreign keys refer to it")
        before = self.held.get(lock.table)
        if lock.mode != SKIPS and before is None:
            last = max((one for one in self.held if not self._may(one, lock)), key=RANK.__getitem__, default=None)
            if last is not None and RANK[last] > RANK[lock.table]:
                self.wrong.append(f"{lock.table} ({lock.mode}) after {last} ({self.held[last].mode})")
        if before is not None and before.mode == lock.mode == "INSERT" and _descends(before.key, lock.key):
            self.wrong.append(f"{lock.table} {lock.key} after {before.key}")
        self.held[lock.table] = lock

    def _may(self, held: str, lock: Lock) -> bool:
        return self.held[held].mode == KEY_SHARE and (held, lock.table) in _PUT_AFTER


def _descends(before: tuple[Any, ...] | None, after: tuple[Any, ...] | None) -> bool:
    return (
        before is not None
        and after is not None
        and len(before) == len(after)
        and tuple(map(str, after)) < tuple(map(str, before))
    )


@dataclass
class Watch:
    """The transactions of every meta store that this process opens. `wrong` is by what was wrong, with an example.

    Only the transactions that the product begins are watched, and not those of a test.
    """

    tell: Callable[[str], object] = str
    wrong: dict[str, str] = field(default_factory=dict[str, str])
    harmless: WeakSet[Any] = field(default_factory=WeakSet[Any])
    """What SQLAlchemy has compiled of statements that lock nothing. Looking at each again takes longer."""

    def attach(self) -> None:
        """Begin to watch."""
        begin = PostgresStores.begin

        def watched(stores: PostgresStores, *given: Any, **named: Any) -> Any:
            return _By(_caller(inspect.currentframe()), begin(stores, *given, **named))

        setattr(PostgresStores, "begin", watched)  # noqa: B010 - the type of a method is another
        event.listen(Engine, "begin", self._begin)
        event.listen(Engine, "before_cursor_execute", self._execute)

    def _begin(self, connection: Connection) -> None:
        connection.info["watched"] = Watched() if _BY.get() else None

    def _execute(
        self, connection: Connection, _cursor: Any, _text: str, _given: Any, context: Any, _many: bool
    ) -> None:
        watched: Watched | None = connection.info.get("watched")
        if watched is None or context.compiled is None or context.compiled in self.harmless:
            return
        statement = context.invoked_statement
        if not isinstance(statement, Select | Insert | Update | Delete):
            return
        locks = locks_of(statement, context.compiled_parameters[0])
        if not locks:
            self.harmless.add(context.compiled)
        for lock in locks:
            known = len(watched.wrong)
            if lock.table in RANK or lock.table in SINGLE_WRITER:
                watched.lock(lock)
            for wrong in watched.wrong[known:]:
                text = f"{wrong} in {_BY.get()}: {' '.join(str(statement).split())[:200]}"
                if wrong not in self.wrong:
                    self.tell(text)
                self.wrong[wrong] = text


_BY: ContextVar[str] = ContextVar("by", default="")


def _caller(frame: FrameType | None) -> str:
    """Return the function of the product that begins a transaction in `frame`, or nothing for one of a test."""
    assert frame is not None
    frame = frame.f_back
    assert frame is not None
    path = frame.f_code.co_filename
    return f"{path.partition('/service/')[2]} {frame.f_code.co_name}" if "/service/operations/" in path else ""


@dataclass
class _By:
    """A transaction, and who begins it."""

    caller: str
    within: Any
    token: Any = None

    async def __aenter__(self) -> Any:
        self.token = _BY.set(self.caller)
        return await self.within.__aenter__()

    async def __aexit__(self, *error: object) -> Any:
        try:
            return await self.within.__aexit__(*error)
        finally:
            _BY.reset(self.token)
