"""Jobs of stages, to store in a meta store."""

from service.ports.records import THE_RELATION, NewJob, NewOperator, NewTableScan, hidden_id
from service.protocol.ids import RelationId
from service.protocol.plan import Prefix, ScanType
from service.protocol.relation import RelationKind
from service.protocol.stage import Condition, Input, Join, JoinKind, Partition, Side, Stage, Value
from tests.support.meta_store import relation


def joined(left: RelationId, right: RelationId) -> Stage:
    """Return a left join by the price, which is not the key of either side."""
    equal = (
        Side(sql='"a"."price"', inputs=("a",), alias="a", column="price"),
        Side(sql='"b"."price"', inputs=("b",), alias="b", column="price"),
    )
    return Stage(
        joins=(
            Join(kind=JoinKind.INNER, inputs=(Input(alias="a", relation=left),)),
            Join(
                kind=JoinKind.LEFT,
                inputs=(Input(alias="b", relation=right),),
                on=(Condition(sql='"a"."price" = "b"."price"', inputs=("a", "b"), equal=equal),),
            ),
        ),
        rows=(Value(name="name", sql='"b"."name"'),),
    )


def newest(of: RelationId) -> Stage:
    """Return a partition by the name."""
    driver = Join(kind=JoinKind.INNER, inputs=(Input(alias="a", relation=of),))
    return Stage(joins=(driver,), partition=Partition(columns=("name",), sql='select "name" from part'))


def scan(upstream: RelationId, query: Stage, output: int | None = None) -> NewTableScan:
    """Return the scan of a stage."""
    kind = ScanType.SNAPSHOT_BACKFILL
    return NewTableScan(actors=(((0, 7),),), upstream=upstream, query=query, scan_type=kind, output=output)


def new_stages(left: RelationId, right: RelationId) -> NewJob:
    """Return a view of two stages: a join, then the newest row of each name."""
    hidden = hidden_id(0)
    return NewJob(
        relation("m", RelationKind.MATERIALIZED_VIEW),
        "CREATE MATERIALIZED VIEW m",
        background=True,
        fragments=(scan(left, joined(left, right), 0), scan(hidden, newest(hidden))),
        order=((hidden, THE_RELATION),),
        hidden=(relation("h"),),
    )


def new_operators(left: RelationId, right: RelationId) -> NewJob:
    """Return the same view, built inside the database graph: the right side is read first."""
    hidden, actors = hidden_id(0), (((0, 7),),)

    def prefix(alias: str, upstream: RelationId) -> NewTableScan:
        query, kind = Prefix(operator=0, alias=alias), ScanType.ARRANGEMENT_BACKFILL
        return NewTableScan(actors=actors, upstream=upstream, query=query, scan_type=kind)

    return NewJob(
        relation("m", RelationKind.MATERIALIZED_VIEW),
        "CREATE MATERIALIZED VIEW m",
        background=True,
        fragments=(
            *(prefix("a", left), prefix("b", right)),
            NewOperator(actors=actors, query=joined(left, right), output=0),
            NewOperator(actors=actors, query=newest(hidden)),
        ),
        order=((right, left),),
        hidden=(relation("h"),),
    )
