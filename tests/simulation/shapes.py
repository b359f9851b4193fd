"""What the schedules create and change: tables of two numbers, views that project and filter, in words that the stores
in memory understand.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from service.domain.order import Order
from service.domain.parallelism import Parallelism, blocks, resolved
from service.ports.records import THE_RELATION, NewFragment, NewJob, NewOperator, NewTableScan
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import RelationId
from service.protocol.plan import Prefix, ScanType
from service.protocol.relation import Relation, RelationKind
from service.protocol.stage import Condition, EngineChoice, Input, Join, JoinKind, Stage, Value
from tests.simulation.stages import Chain
from tests.support.model import Row

_NUMBER: Final = ColumnType.parse("bigint")
UNLUCKY: Final = 13
"""A value that the failing query cannot transform."""


class CannotTransformError(Exception):
    """In the words in which Spark says that a row is to blame."""

    def __init__(self) -> None:
        super().__init__("[CAST_INVALID_INPUT] The value '13' is of no use. SQLSTATE: 22018")


def _failing(row: Row) -> Row | None:
    if row[0] == UNLUCKY:
        raise CannotTransformError
    return row[:1]


QUERIES: Final[dict[tuple[str, str | None], Callable[[Row], Row | None]]] = {
    ("v", None): lambda row: row[:1],
    ("v * 10", "v % 3 <> 0"): lambda row: (row[0] * 10,) if row[0] % 3 else None,
    ("v + 1", "v > 4"): lambda row: (row[0] + 1,) if row[0] > 4 else None,
    ("cast(v as number)", None): _failing,
}
HARMLESS: Final = tuple(one for one in QUERIES if not one[0].startswith("cast"))
FAILING: Final = ("cast(v as number)", None)

Branch = tuple[Relation, tuple[str, str | None]]
"""What a branch of a view reads, and its query."""


def query_of(query: Stage) -> Callable[[Row], Row | None]:
    """Return what a query makes of a row."""
    return QUERIES[query.rows[0].sql, next((one.sql for one in query.where), None)]


def is_branch(query: Stage) -> bool:
    """Whether a stage is a branch of a view that projects and filters, and not one of a chain."""
    return query.engine is EngineChoice.SPARK


def branch_of(query: Stage) -> int:
    """Return the number of the query's branch."""
    return int(query.rows[1].sql)


@lru_cache(maxsize=1024)
def _relation(name: str, kind: RelationKind, keys: int, vnode_count: int) -> Relation:
    if kind is RelationKind.TABLE:
        key = (Column(name="k", type=_NUMBER, nullable=False),)
    else:
        key = tuple(Column(name=f"_k{index}", type=_NUMBER, nullable=index > 0, hidden=True) for index in range(keys))
    return Relation(
        id=RelationId(0),
        name=name,
        kind=kind,
        columns=(Column(name="v", type=_NUMBER), *key),
        key=tuple(KeyColumn(name=column.name) for column in key),
        vnode_count=vnode_count,
    )


def table(name: str, vnode_count: int) -> Relation:
    """Return a table `k bigint primary key, v bigint`."""
    return _relation(name, RelationKind.TABLE, 1, vnode_count)


def view(
    name: str,
    branches: Sequence[Branch],
    *,
    actors: Sequence[int],
    parallelism: Parallelism | None = None,
    backfill: Parallelism | None = None,
    rate_limit: int | None = None,
    order: Order = (),
    scan_type: ScanType = ScanType.ARRANGEMENT_BACKFILL,
    background: bool = True,
) -> NewJob:
    """Return a view of one or several branches, each with a number of actors. It has as many vnodes as the widest of
    what it reads.
    """
    keys = 1 + max(len(upstream.key) for upstream, _ in branches)
    vnode_count = max(upstream.vnode_count for upstream, _ in branches)
    target = _relation(name, RelationKind.MATERIALIZED_VIEW, keys, vnode_count)
    scans = tuple(
        NewTableScan(
            actors=blocks(upstream.vnode_count, owners),
            upstream=upstream.id,
            query=_projection(upstream.id, number, tuple(part.name for part in upstream.key), query, keys),
            scan_type=scan_type,
            rate_limit=rate_limit,
        )
        for number, ((upstream, query), owners) in enumerate(zip(branches, actors, strict=True))
    )
    return NewJob(target, f"create {name}", background, scans, parallelism, backfill, order)


def view_of_stages(
    name: str,
    chain: Chain,
    *,
    parallelism: Parallelism,
    backfill: Parallelism | None,
    rate_limit: int | None,
    slots: int,
    serverless: bool,
) -> NewJob:
    """Return a view of stages."""
    *hidden, target = chain.targets
    scans = tuple(
        NewTableScan(
            actors=blocks(
                vnode_count, resolved(backfill or parallelism, slots=slots, vnode_count=vnode_count, scans=1)
            ),
            upstream=stage.driver.relation,
            query=stage,
            scan_type=ScanType.SNAPSHOT_BACKFILL,
            rate_limit=rate_limit,
            output=place if place < len(hidden) else None,
        )
        for place, (stage, vnode_count) in enumerate(zip(chain.stages, chain.drivers, strict=True))
    )
    return NewJob(
        target.model_copy(update={"name": name}),
        f"create {name}",
        background=True,
        fragments=scans,
        parallelism=parallelism,
        backfill_parallelism=backfill,
        order=chain.order,
        serverless=serverless,
        hidden=tuple(hidden),
    )


def view_of_operators(
    name: str,
    chain: Chain,
    bases: Sequence[Relation],
    *,
    parallelism: Parallelism,
    backfill: Parallelism | None,
    rate_limit: int | None,
    other_limit: int | None,
    slots: int,
    order: Order,
) -> NewJob:
    """Return a view of stages over `bases` that is built inside the database graph.

    Every other scan has the other limit, so that the occurrences of a relation drift apart.
    """
    *hidden, target = chain.targets
    vnode_counts = {one.id: one.vnode_count for one in bases}
    fragments: list[NewFragment] = []
    for place, stage in enumerate(chain.stages):
        for one in stage.inputs:
            if one.relation > THE_RELATION:
                count = vnode_counts[one.relation]
                fragments.append(
                    NewTableScan(
                        actors=blocks(
                            count, resolved(backfill or parallelism, slots=slots, vnode_count=count, scans=1)
                        ),
                        upstream=one.relation,
                        query=Prefix(operator=place, alias=one.alias),
                        scan_type=ScanType.ARRANGEMENT_BACKFILL,
                        rate_limit=other_limit if len(fragments) % 2 else rate_limit,
                    )
                )
        output = place if place < len(hidden) else None
        actors = (((0, chain.targets[place].vnode_count - 1),),)
        fragments.append(NewOperator(actors=actors, query=stage, output=output))
    return NewJob(
        target.model_copy(update={"name": name}),
        f"create {name}",
        background=True,
        fragments=tuple(fragments),
        parallelism=parallelism,
        backfill_parallelism=backfill,
        order=order,
        hidden=tuple(hidden),
    )


@lru_cache(maxsize=4096)
def _projection(
    upstream: RelationId, branch: int, names: tuple[str, ...], query: tuple[str, str | None], keys: int
) -> Stage:
    """Return a branch, which Spark always computes."""
    value, predicate = query
    texts = [str(branch), *names, *["null"] * (keys - 1 - len(names))]
    rows = {"v": value, **{f"_k{place}": text for place, text in enumerate(texts)}}
    return Stage(
        joins=(Join(kind=JoinKind.INNER, inputs=(Input(alias="i", relation=upstream),)),),
        where=() if predicate is None else (Condition(sql=predicate, spark=predicate, inputs=("i",)),),
        rows=tuple(Value(name=name, sql=text, spark=text) for name, text in rows.items()),
        engine=EngineChoice.SPARK,
    )
