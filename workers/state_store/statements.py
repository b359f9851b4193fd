"""The SQL of versioned tables, printed from relations, spans and epochs. Pure."""

from service.protocol.ids import Epoch
from service.protocol.plan import Pushdown
from service.protocol.relation import ALIVE, Relation, state_table
from service.protocol.vnodes import Runs
from workers.backfill.order import KeyPart, after_postgres, key_of, quoted
from workers.backfill.positions import Block, Span
from workers.state_store.wire import read_postgres


def page_query(relation: Relation, block: Block, *, at: Epoch, limit: int) -> str:
    """Read a block as of an epoch, in storage order, by the storage index: `limit` rows of each vnode."""
    return _page(relation, block, _columns(relation), at, limit)


def copy_query(
    upstream: Relation, target: Relation, query: Pushdown, block: Block, *, at: Epoch, epoch: Epoch, limit: int
) -> str:
    """Copy the rows of a page as of `at` that satisfy the query, as versions of `epoch`, and tell of the page by vnode:
    its rows, the rows copied, and the key of the row at the limit (NULLs where there is none).
    """
    key = key_of(upstream)
    # A condition may read any column; without one the page carries what is copied and its key.
    read = [column.name for column in upstream.columns if query.predicate is not None]
    copied = [column for column in query.columns if isinstance(column, str)]
    wanted = dict.fromkeys((*copied, *(part.name for part in key), *read))
    # Its row's place within its vnode goes by a name that no column has.
    place = f"row_number() over (partition by _vnode order by {_order(upstream)}) as _to"
    page = _page(upstream, block, ", ".join([*map(quoted, wanted), place]), at, limit)
    predicate = "true" if query.predicate is None else query.predicate
    last = ", ".join(
        f"(array_agg({_value(part)}) filter (where _to = {limit}))[1] as {quoted(part.name)}" for part in key
    )
    return (
        f"with page as materialized ({page}),"
        f" copied as (insert into {state_table(target.id)} ({', '.join(map(quoted, stored_columns(target)))})"
        f" select _vnode, {', '.join(map(_pushed, query.columns))}, {epoch} from page where {predicate})"
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


def _page(relation: Relation, block: Block, columns: str, at: Epoch, limit: int) -> str:
    # One after the other: without parallel workers Postgres appends what each vnode gives, in this order.
    return " union all ".join(
        f"(select _vnode, {columns} from {state_table(relation.id)} where {_rest(relation, span)}"
        f" and _from <= {at} and _to > {at} order by _vnode, {_order(relation)} limit {limit})"
        for span in block
    )


def _rest(relation: Relation, span: Span) -> str:
    vnode = f"_vnode = {span.vnode}"
    return vnode if span.after is None else f"{vnode} and {after_postgres(key_of(relation), span.after)}"


def _pushed(column: str | int | None) -> str:
    match column:
        case str():
            return quoted(column)
        case int():
            return str(column)
        case None:
            return "null"


def _value(part: KeyPart) -> str:
    """A key's value as `read_schema` has it."""
    return read_postgres(part.name, part.type).removesuffix(f" as {quoted(part.name)}")


def _columns(relation: Relation) -> str:
    return ", ".join(read_postgres(column.name, column.type) for column in relation.columns)


def _order(relation: Relation) -> str:
    # The qualified name: an output column that was turned into text for its travel must not decide the order.
    table = state_table(relation.id).split(".")[1]
    return ", ".join(
        f"{table}.{quoted(part.name)} {'desc nulls first' if part.descending else 'asc nulls last'}"
        for part in relation.key
    )
