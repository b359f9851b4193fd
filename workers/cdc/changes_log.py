"""Print the SQL of the log of a followed table in a lake: rows of history and changes which its table lacks.

The log is appended to, in the order of `_seq`. It has no keys, so that no row of the table is looked up. A change is
the whole row that its key has from then on, or says that the key has none. What it says last of a key is what counts.
Pure.
"""

from collections.abc import Mapping

from service.protocol.ids import Epoch
from service.protocol.quoting import quoted
from service.protocol.relation import (
    LOGGED_END,
    LOGGED_PAGE,
    LOGGED_ROW,
    LOGGED_TRUNCATION,
    Relation,
    RelationId,
    log_table,
)
from service.protocol.vnodes import Runs
from workers.state_store.port import CLOSE, LIVE, PAGE
from workers.state_store.statements import read_postgres

_OPERATIONS: Mapping[int, int] = {LOGGED_PAGE: PAGE, LOGGED_ROW: LIVE, LOGGED_END: CLOSE}


def append_command(relation: Relation, typed: str, vnode: str, epoch: Epoch) -> str:
    """Return the command that appends typed rows, of which `_to` says whether their key has a row.

    It returns one row: how many keys have none, and how many have one.
    """
    names = ", ".join(quoted(column.name) for column in relation.columns)
    op = f"case when _to then {LOGGED_ROW} else {LOGGED_END} end"
    ended = f"count(*) filter (where _op = {LOGGED_END})"
    return (
        f"with typed as materialized ({typed}), logged as (insert into {log_table(relation.id)}"
        f" (_vnode, {names}, _from, _op) select {vnode}, {names}, {epoch}, {op} from typed returning _op)"
        f" select {ended}, count(*) - {ended} from logged"
    )


def truncate_command(relation: RelationId, epoch: Epoch) -> str:
    """Return the command that says that no key has a row."""
    return f"insert into {log_table(relation)} (_vnode, _from, _op) values (0, {epoch}, {LOGGED_TRUNCATION})"


def undo_command(relation: RelationId, prev: Epoch) -> str:
    """Return the command that removes what was appended after an epoch."""
    return f"delete from {log_table(relation)} where _from > {prev}"


def trim_command(relation: RelationId, upto: Epoch) -> str:
    """Return the command that removes what the table in the lake has: all up to an epoch."""
    return f"delete from {log_table(relation)} where _from <= {upto}"


def waiting_query(relation: RelationId) -> str:
    """Return the query for how many rows there are."""
    return f"select count(*) from {log_table(relation)}"


def truncation_query(relation: RelationId, *, after: Epoch, upto: Epoch) -> str:
    """Return the query for the place of the last truncation in `(after, upto]`, NULL if there is none."""
    return f"select max(_seq) from {log_table(relation)} where _op = {LOGGED_TRUNCATION} and {_between(after, upto)}"


def rows_since(relation: Relation, place: int, *, upto: Epoch, runs: Runs) -> str:
    """Return the query for the rows that there are, given that there were none at a place. They are new, so pages."""
    last = _last(relation, f"_seq > {place} and _from <= {upto} and {_within(runs)}")
    return f"select {PAGE}::smallint, _vnode, {_columns(relation)} from ({last}) l where _op <> {LOGGED_END}"


def pages_query(relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs) -> str:
    """Return the query for rows of history."""
    where = f"_op = {LOGGED_PAGE} and {_between(after, upto)} and {_within(runs)}"
    return f"select {PAGE}::smallint, _vnode, {_columns(relation)} from {log_table(relation.id)} where {where}"


def changes_query(relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs) -> str:
    """Return the query for the last change of each key."""
    where = f"_op in ({LOGGED_ROW}, {LOGGED_END}) and {_between(after, upto)} and {_within(runs)}"
    op = " ".join(f"when {logged} then {operation}" for logged, operation in _OPERATIONS.items())
    return f"select (case _op {op} end)::smallint, _vnode, {_columns(relation)} from ({_last(relation, where)}) l"


def _last(relation: Relation, where: str) -> str:
    key = ", ".join(quoted(part.name) for part in relation.key)
    return f"select distinct on ({key}) * from {log_table(relation.id)} where {where} order by {key}, _seq desc"


def _columns(relation: Relation) -> str:
    return ", ".join(map(read_postgres, relation.columns))


def _between(after: Epoch, upto: Epoch) -> str:
    return f"_from > {after} and _from <= {upto}"


def _within(runs: Runs) -> str:
    return "(" + " or ".join(f"_vnode between {first} and {last}" for first, last in runs) + ")"
