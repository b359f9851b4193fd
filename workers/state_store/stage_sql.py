"""Print a stage in the state store's SQL: the rows that changes remove and add, and a page of history. Pure.

The versions of an input are of three kinds in an epoch. *Old* ones were visible before it and are not after it, *new*
ones are visible only after it, and the *same* are visible before and after. The rows that go are rows of the state
before the epoch that contain an old version. The rows that come are rows of the state after it that contain a new
version. Over the inputs 1..n of a block:

    gone = union over i of  same(1) x .. x same(i-1) x old(i) x before(i+1) x .. x before(n)
    come = union over i of  same(1) x .. x same(i-1) x new(i) x after(i+1) x .. x after(n)

Every row of `gone` was in the result and every row of `come` is in it, each exactly once. Nothing has to cancel.

An outer join, EXISTS and NOT EXISTS are evaluated for these rows, on both states. They add the rows of unchanged inputs
that meet a changed version there. A row that is the same on both sides is dropped.

Without statistics the planner would read a whole table for a few changes. A lookup is therefore a lateral subquery with
`OFFSET 0`, which Postgres cannot merge into a join. It stays one index lookup per row.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from service.protocol.columns import ColumnType, TypeName
from service.protocol.ids import Epoch, RelationId
from service.protocol.quoting import quoted
from service.protocol.relation import partials_table, state_table
from service.protocol.vnodes import vnode_postgres
from workers.backfill.stages import BoundStage
from workers.state_store.stage_blocks import BlockPrinter
from workers.state_store.stage_delta import NEW, OLD, PAGE, Delta, states_of, versions, visible
from workers.state_store.stage_parts import of_parts, page_of_parts, whole_part
from workers.state_store.statements import live_version, stored_columns

_BY_TEXT: Final = frozenset({TypeName.REAL, TypeName.DOUBLE, TypeName.INTERVAL, TypeName.JSONB})
"""Types whose equal values can differ in their text, as 0 and -0. A change between them is a change."""


def changes(delta: Delta, *, anew: bool = False) -> str:
    """Print the CTEs for what changed in the inputs: `gone` and `come`, and those that they need. See `of_parts`."""
    texts = list(versions(delta))
    if delta.bound.stage.partition is not None:
        texts += of_parts(delta, anew=anew)
        return ", ".join(texts)
    printer = BlockPrinter(delta.bound)
    touched = list(printer.touched(delta))
    if touched:
        texts.append(f"touched as materialized ({' union '.join(touched)})")
    for name, side in (("gone", OLD), ("come", NEW)):
        terms = list(printer.core_terms(side, delta))
        if touched:
            terms.append(printer.term(printer.rejoined(), states_of(delta, side)))
        texts.append(f"{name} as materialized ({' union all '.join(terms)})")
    return ", ".join(texts)


def page(bound: BoundStage, at: Mapping[RelationId, Epoch], within: str, *, looked_up: bool) -> str:
    """Print the query for what the page `PAGE` of the driver gives, with the other inputs at their epochs.

    Rows of the page satisfy the condition `within` by their vnode and key.
    With `looked_up` they are looked up for each row, otherwise as the store chooses.
    """
    if bound.stage.partition is not None:
        return page_of_parts(bound, at[bound.upstream.id], within)
    seen = {alias: visible(at[relation.id]) for alias, relation in bound.of.items()}
    printer = BlockPrinter(bound, looked_up=looked_up)
    return printer.term(printer.chain(bound.stage.driver.alias, PAGE, seen), seen)


def whole(bound: BoundStage, at: Mapping[RelationId, Epoch]) -> str:
    """Print the query for the rows of a part that is the whole input, also of one without rows."""
    return whole_part(bound, at[bound.upstream.id])


def placed(bound: BoundStage, rows: str) -> str:
    """Print the query for rows as versions of the target: with their vnode."""
    return f"select {vnode_of(bound)} as _vnode, {_columns(bound)} from ({rows}) rows"


def vnode_of(bound: BoundStage) -> str:
    """Print the vnode of a row of the target from its columns, or as its driver's row has it."""
    if not bound.stage.distribution:
        return "_vnode"
    columns = [(quoted(name), bound.target.column(name).type) for name in bound.stage.distribution]
    return vnode_postgres(columns, bound.target.vnode_count)


def _columns(bound: BoundStage) -> str:
    return ", ".join(quoted(column.name) for column in bound.target.columns)


def net(bound: BoundStage) -> str:
    """Print the query for `given` of `statements.write`: the rows that differ between `gone` and `come`.

    A row that is on both sides appears twice and is dropped. No join compares the two sides.
    """
    names = [quoted(column.name) for column in bound.target.columns]
    texts = [f"{quoted(column.name)}::text" for column in bound.target.columns if _by_text(column.type)]
    return (
        f"select {vnode_of(bound)} as _vnode, {', '.join(names)}, bool_and(_to) as _to"
        " from (select *, true as _to from come union all select *, false from gone) either"
        f" group by {', '.join(['_vnode'] * (not bound.stage.distribution) + names + texts)} having count(*) = 1"
    )


def every(bound: BoundStage) -> str:
    """Print the query for `given` of `statements.write`: all rows of `come`, whatever the target holds of them."""
    names = ", ".join(quoted(column.name) for column in bound.target.columns)
    rows = "select *, true as _to from come union all select *, false from gone"
    return f"select {vnode_of(bound)} as _vnode, {names}, _to from ({rows}) either"


def summed(bound: BoundStage, contributions: str) -> str:
    """Print the query for the sums by which groups change. `contributions` is a query of keys and measures."""
    aggregate = bound.stage.aggregate
    assert aggregate is not None
    keys = ", ".join(map(quoted, aggregate.keys))
    sums = [f"sum({quoted(one)}) as {quoted(one)}" for one in aggregate.measures]
    return f"select {keys}, {', '.join(sums)} from ({contributions}) contributed group by {keys}"


def logged(bound: BoundStage, contributions: str, epoch: Epoch) -> str:
    """Print the command that appends the sums of an epoch's pages to the log of partial groups, ordered by vnode.

    Invariant: the history only adds, so each group in the log has a row in the result.
    """
    assert bound.stage.aggregate is not None
    names = ", ".join(["_vnode", *map(quoted, bound.stage.aggregate.state)])
    sums = f"select {vnode_of(bound)} as _vnode, * from ({_with_always(bound, summed(bound, contributions))}) sums"
    log = partials_table(bound.target.id)
    return f"insert into {log} ({names}, _from) select {names}, {epoch} from ({sums}) placed order by _vnode"


def unmerged(bound: BoundStage) -> str:
    """Print the query for the vnodes that have partial groups and no group yet.

    All groups of a vnode are merged by one transaction, so a vnode with a group is merged.
    """
    return (
        f"select distinct _vnode from {partials_table(bound.target.id)}"
        f" where _vnode not in (select distinct _vnode from {state_table(bound.target.id)}) order by 1"
    )


def merged(bound: BoundStage, vnodes: Sequence[int], epoch: Epoch) -> str:
    """Print the command that inserts the groups of some vnodes, each the sum of its partial groups."""
    aggregate, target = bound.stage.aggregate, bound.target
    assert aggregate is not None
    keys = ", ".join(["_vnode", *map(quoted, aggregate.keys)])
    state = ", ".join(
        f"sum({quoted(name)})::{target.column(name).type} as {quoted(name)}" for name in aggregate.measures
    )
    chosen = f"_vnode = any('{{{','.join(map(str, vnodes))}}}'::smallint[])"
    groups = f"select {keys}, {state} from {partials_table(target.id)} where {chosen} group by {keys}"
    names = ", ".join(map(quoted, stored_columns(target)))
    values = ", ".join(["_vnode", *_group_columns(bound, "true"), str(epoch)])
    groups = _as_seen(bound, groups, ["_vnode"])
    return (
        f"insert into {state_table(target.id)} ({names}) select {values} from ({groups}) groups order by {_key(bound)}"
    )


def _group_columns(bound: BoundStage, lives: str) -> list[str]:
    """Print the columns of the target from the keys and sums of a group. Results are computed where it `lives`."""
    aggregate, target = bound.stage.aggregate, bound.target
    assert aggregate is not None
    results = {
        one.name: f"(case when {lives} then {one.sql} end)::{target.column(one.name).type}" for one in aggregate.results
    }
    return [
        f"{results[column.name]} as {quoted(column.name)}" if column.name in results else quoted(column.name)
        for column in target.columns
    ]


def contributed(bound: BoundStage) -> str:
    """Print the query for what changes contribute: `come`, and the reverse of `gone`."""
    aggregate = bound.stage.aggregate
    assert aggregate is not None
    keys, measures = (list(map(quoted, names)) for names in (aggregate.keys, aggregate.measures))
    return (
        f"select {', '.join(keys + measures)} from come"
        f" union all select {', '.join(keys + [f'-{one}' for one in measures])} from gone"
    )


def found_groups(bound: BoundStage, delta: str) -> str:
    """Print the query for `found` of `statements.written`: the changed groups with their new state and results.

    `delta` is a query of keys and sums. The groups' present versions are looked up once, here.
    """
    aggregate, target = bound.stage.aggregate, bound.target
    assert aggregate is not None
    keys = [quoted(name) for name in aggregate.keys]
    first, *_ = measures = [quoted(name) for name in aggregate.measures]
    state = [
        f"(coalesce(t.{quoted(name)}, 0) + coalesce(d.{quoted(name)}, 0))::{target.column(name).type} as {quoted(name)}"
        for name in aggregate.measures
    ]
    changes = " or ".join(f"d.{one} <> 0" for one in measures) + (" or t.ctid is null" if aggregate.always else "")
    lives = "true" if aggregate.always else f"{first} > 0"
    columns = _group_columns(bound, lives)
    lookup = live_version(target, "d", f"t.ctid, t._from, {', '.join(f't.{one}' for one in measures)}")
    sums = f"select {vnode_of(bound)} as _vnode, * from ({_with_always(bound, delta)}) sums order by {_key(bound)}"
    groups = (
        f"select d._vnode, {', '.join(f'd.{one}' for one in keys)}, {', '.join(state)}, t._from, t.ctid"
        f" from ({sums}) d left join lateral ({lookup}) t on true where {changes}"
    )
    groups = _as_seen(bound, groups, ["_vnode", "_from", "ctid"])
    return f"select _vnode, {', '.join(columns)}, {lives} as _to, _from, ctid from ({groups}) groups"


def _as_seen(bound: BoundStage, groups: str, beside: Sequence[str]) -> str:
    """Print the query for groups with their keys as their rows show them. `beside` are further columns."""
    aggregate = bound.stage.aggregate
    assert aggregate is not None
    if not aggregate.looks:
        return groups
    looks = {one.name: one.sql for one in aggregate.looks}
    state = [f"{looks.get(name, quoted(name))} as {quoted(name)}" for name in aggregate.state]
    return f"select {', '.join([*beside, *state])} from ({groups}) unseen"


def _with_always(bound: BoundStage, delta: str) -> str:
    """Add a group without rows to the sums, if there is a row even so."""
    aggregate = bound.stage.aggregate
    assert aggregate is not None
    if not aggregate.always:
        return delta
    values = {one.name: one.sql for one in bound.stage.rows}
    keys = ", ".join(map(quoted, aggregate.keys))
    sums = ", ".join(f"sum({quoted(one)}) as {quoted(one)}" for one in aggregate.measures)
    zero = ", ".join([*(values[one] for one in aggregate.keys), *("0" for _ in aggregate.measures)])
    return f"select {keys}, {sums} from ({delta} union all select {zero}) every group by {keys}"


def _key(bound: BoundStage) -> str:
    return ", ".join(["_vnode", *(quoted(part.name) for part in bound.target.key)])


def _by_text(kind: ColumnType) -> bool:
    return kind.name in _BY_TEXT or (kind.name is TypeName.NUMERIC and kind.precision is None)
