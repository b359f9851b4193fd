"""The SQL of versioned tables, printed from relations, spans and epochs. Pure."""

from service.protocol.ids import Epoch
from service.protocol.plan import Pushdown
from service.protocol.relation import ALIVE, Relation, state_table
from service.protocol.vnodes import Runs
from workers.backfill.order import after_postgres, key_of, quoted
from workers.backfill.positions import Span
from workers.state_store.wire import read_postgres


def page_query(relation: Relation, span: Span, *, at: Epoch, limit: int) -> str:
    """Read a span as of an epoch, in storage order, by the storage index."""
    return (
        f"select _vnode, {_columns(relation)} from {state_table(relation.id)} where {_page(relation, span, at)}"
        f" order by _vnode, {_order(relation)} limit {limit}"
    )


def copy_query(upstream: Relation, target: Relation, query: Pushdown, span: Span, *, at: Epoch, limit: int) -> str:
    """Copy the rows of a page that satisfy the query, and tell of the page by vnode: its rows, the rows copied, and the
    key of the row at the limit (NULLs where there is none).
    """
    key = key_of(upstream)
    # A condition may read any column; without one the page carries what is copied and its key.
    read = [column.name for column in upstream.columns if query.predicate is not None]
    wanted = dict.fromkeys((*query.columns, *(part.name for part in key), *read))
    where = _page(upstream, span, at)
    predicate = "true" if query.predicate is None else query.predicate
    last = ", ".join(
        f"(select {read_postgres(part.name, part.type)} from page offset {limit - 1} limit 1) as {quoted(part.name)}"
        for part in key
    )
    return (
        f"with page as materialized (select _vnode, {', '.join(map(quoted, wanted))} from {state_table(upstream.id)}"
        f" where {where} order by _vnode, {_order(upstream)} limit {limit}),"
        f" copied as (insert into {state_table(target.id)} ({', '.join(map(quoted, stored_columns(target)))})"
        f" select _vnode, {', '.join(map(quoted, query.columns))}, {at} from page where {predicate})"
        f" select _vnode, count(*) as rows, count(*) filter (where {predicate}) as copied, {last}"
        " from page group by _vnode order by _vnode"
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


def _page(relation: Relation, span: Span, at: Epoch) -> str:
    where = [f"_vnode between {span.first} and {span.last}", f"_from <= {at}", f"_to > {at}"]
    if span.after is not None:
        where[0] = f"_vnode = {span.first}"
        where.append(after_postgres(key_of(relation), span.after))
    return " and ".join(where)


def _columns(relation: Relation) -> str:
    return ", ".join(read_postgres(column.name, column.type) for column in relation.columns)


def _order(relation: Relation) -> str:
    # The qualified name: an output column that was turned into text for its travel must not decide the order.
    table = state_table(relation.id).split(".")[1]
    return ", ".join(
        f"{table}.{quoted(part.name)} {'desc nulls first' if part.descending else 'asc nulls last'}"
        for part in relation.key
    )
