"""Remove the stored rows of a reloaded table whose keys the external table does not have.

This precedes the pages of a reload. The stored keys are compared in the order of storage, because the external server
may order texts in another way than the state store does. A row that is removed by mistake would come back with the
pages. A key that comes back later is in the log, which counts for every key during a reload.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.protocol.cdc import Sweep
from service.protocol.ids import Epoch
from service.protocol.quoting import quoted, quoted_text
from service.protocol.relation import ALIVE, Relation, state_table
from workers.cdc.apply import Applying, applying
from workers.cdc.external import Session
from workers.cdc.fold import Folded, Key
from workers.cdc.keys import ExternalTable
from workers.cdc.pgoutput import piece_of
from workers.cdc.snapshots import Snapshot
from workers.state_store.port import SqlStore

BATCH_KEYS: Final = 10_000
"""How many keys are looked up together: about a megabyte, and some tens of milliseconds."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of an epoch: how far the comparison is, how many keys it compared, and how many rows it ended.

    `waiting` is why the table may not be read now.
    """

    sweep: Sweep
    compared: int = 0
    ended: int = 0
    waiting: str | None = None


def sweep(
    session: Session,
    store: SqlStore,
    table: ExternalTable,
    at: Sweep,
    *,
    curr: Epoch,
    may_show: Callable[[Snapshot], str | None],
    permits: int | None,
    more_time: Callable[[], bool],
) -> Swept:
    """Compare keys until all are compared, the permits are used up, or the time is over.

    `may_show` returns why a snapshot may not be used, None where it may. Raises AwayError, ChangedError, and what the
    state store raises. What it has written is durable when it returns.
    """
    compared = ended = 0
    with applying(store) as writing:
        while permits is None or compared < permits:
            rows = BATCH_KEYS if permits is None else min(BATCH_KEYS, permits - compared)
            found = writing.connection.execute(_sql(keys_query(table.relation, at, rows))).fetchall()
            keys: list[Key] = [tuple(map(piece_of, key)) for _, *key in found]
            if keys:
                there, snapshot = session.present(table, keys)
                waiting = may_show(snapshot)
                if waiting is not None:
                    return Swept(at, compared, ended, waiting)
                ended += _end(writing, table.relation, [key for key in keys if key not in there], curr)
                compared += len(keys)
                at = Sweep(after=tuple(map(str, found[-1])))
            if len(keys) < rows:
                return Swept(Sweep(over=True), compared, ended)
            if not more_time():
                break
    return Swept(at, compared, ended)


def _end(writing: Applying, relation: Relation, keys: Sequence[Key], curr: Epoch) -> int:
    if not keys:
        return 0
    writing.load(relation, Folded(ended=tuple(keys)))
    writing.begin(relation, curr)
    return writing.written().ended


def keys_query(relation: Relation, at: Sweep, rows: int) -> str:
    """Return the query for the next stored keys: the vnode, and the key's columns as texts. Pure."""
    names = [quoted(part.name) for part in relation.key]
    after = ""
    if at.after is not None:
        vnode, *key = at.after
        values = [f"{quoted_text(text)}::{kind}" for text, kind in zip(key, relation.key_types, strict=True)]
        after = f" and (_vnode, {', '.join(names)}) > ({int(vnode)}, {', '.join(values)})"
    texts = ", ".join(f"{name}::text" for name in names)
    return (
        f"select _vnode, {texts} from {state_table(relation.id)} where _to = {ALIVE}{after}"
        f" order by _vnode, {', '.join(names)} limit {rows}"
    )


def _sql(text: str) -> Any:
    return text
