"""The SQL of versioned tables, printed from relations, spans and epochs. Pure."""

from service.protocol.ids import Epoch
from service.protocol.relation import ALIVE, Relation, state_table
from service.protocol.vnodes import Runs
from workers.backfill.order import after_postgres, key_of, quoted
from workers.backfill.positions import Span
from workers.state_store.wire import read_postgres


def page_query(relation: Relation, span: Span, *, at: Epoch, limit: int) -> str:
    """Read a span as of an epoch, in storage order, by the storage index."""
    where = [f"_vnode between {span.first} and {span.last}", f"_from <= {at}", f"_to > {at}"]
    if span.after is not None:
        where[0] = f"_vnode = {span.first}"
        where.append(after_postgres(key_of(relation), span.after))
    return (
        f"select _vnode, {_columns(relation)} from {state_table(relation.id)} where {' and '.join(where)}"
        f" order by _vnode, {_order(relation)} limit {limit}"
    )


def old_versions(relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs) -> str:
    """Versions that were alive at `after` and ended at or before `upto`."""
    return _changes(relation, f"_to > {after} and _to <= {upto} and _to <> {ALIVE} and _from <= {after}", runs)


def new_versions(relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs) -> str:
    """Versions that began after `after` and are alive at `upto`."""
    return _changes(relation, f"_from > {after} and _from <= {upto} and _to > {upto}", runs)


def _changes(relation: Relation, span: str, runs: Runs) -> str:
    # The span is looked up first, by its own index: an index on the vnode would lead through the whole history.
    vnodes = " or ".join(f"_vnode between {first} and {last}" for first, last in runs)
    return (
        f"with span as materialized (select * from {state_table(relation.id)} where {span})"
        f" select _vnode, {_columns(relation)} from span where {vnodes}"
    )


def close(relation: Relation, keys: str, epoch: Epoch) -> str:
    """End the versions alive at the keys of the table `keys` (`_vnode` and the key columns).

    The guard `_from < epoch` makes it commute with the inserts of the same epoch.
    """
    columns = ["_vnode", *(quoted(part.name) for part in relation.key)]
    nullable = {quoted(part.name) for part in relation.key if relation.column(part.name).nullable}
    matches = " and ".join(
        f"t.{name} {'is not distinct from' if name in nullable else '='} k.{name}" for name in columns
    )
    return (
        f"update {state_table(relation.id)} t set _to = {epoch} from {keys} k"
        f" where {matches} and t._to = {ALIVE} and t._from < {epoch}"
    )


def stored_columns(relation: Relation) -> list[str]:
    """The columns a writer fills, in order: `_vnode`, the relation's own, `_from`."""
    return ["_vnode", *(column.name for column in relation.columns), "_from"]


def _columns(relation: Relation) -> str:
    return ", ".join(read_postgres(column.name, column.type) for column in relation.columns)


def _order(relation: Relation) -> str:
    # The qualified name: an output column that was turned into text for its travel must not decide the order.
    table = state_table(relation.id).split(".")[1]
    return ", ".join(
        f"{table}.{quoted(part.name)} {'desc nulls first' if part.descending else 'asc nulls last'}"
        for part in relation.key
    )
