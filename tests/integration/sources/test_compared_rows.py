"""Rows of an external table that are read to be compared: so many at most, and beside the event loop."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from service.domain.comparing import Part, cut
from service.protocol import digests
from service.protocol.cdc import CdcColumn, CdcScan, CdcSource, Split
from service.protocol.columns import Column, ColumnType
from service.protocol.ids import RelationId, SourceId
from service.protocol.relation import KeyColumn, Relation, RelationKind
from service.sources.comparing import PostgresExternalRows
from tests.support.external import External, external_database

pytestmark = pytest.mark.postgres

ORDERS = Relation(
    id=RelationId(1),
    name="orders",
    kind=RelationKind.TABLE,
    columns=(Column(name="id", type=ColumnType.parse("bigint"), nullable=False),),
    key=(KeyColumn(name="id"),),
    vnode_count=8,
)
SCAN = CdcScan(
    source=CdcSource(id=SourceId(2), name="pg", slot="s", publication="p", offset="0/0"),
    external_schema="public",
    external_table="orders",
    columns=(CdcColumn(name="id", external="id", type="bigint"),),
    split_column="id",
    splits=(Split(left=None, right=None),),
    readable_after=0,
    total=0,
)


@pytest.fixture
def external(postgres_url: str) -> Iterator[External]:
    with external_database(postgres_url) as one:
        one.run("create table orders (id bigint primary key)", "insert into orders select generate_series(1, 50)")
        yield one


async def test_i8_no_more_rows_are_read_than_asked_for(external: External, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[threading.Thread] = set()
    by_key = digests.by_key

    def recorded(found: Any) -> Any:
        threads.add(threading.current_thread())
        return by_key(found)

    monkeypatch.setattr(digests, "by_key", recorded)
    rows = PostgresExternalRows()
    some, _ = await rows.rows(external.address, SCAN, ORDERS, Part(), 7)
    assert len(some) == 7
    some, _ = await rows.rows_of(external.address, SCAN, ORDERS, [("1",), ("51",)])
    assert list(some) == [("1",)]
    assert threading.main_thread() not in threads


async def test_a_range_that_is_cut_by_vnode_holds_every_row_once(external: External) -> None:
    rows, part = PostgresExternalRows(), Part(("9",), ("40",))
    whole, _ = await rows.digest(external.address, SCAN, ORDERS, part)
    pieces = [(await rows.digest(external.address, SCAN, ORDERS, one))[0] for one in cut(part, 8, 150_000)]
    assert whole.rows == 31
    assert len(pieces) == 3
    assert sum(piece.rows for piece in pieces) == 31
    assert sum(piece.total for piece in pieces) == whole.total


async def test_f6_a_key_that_got_longer_is_compared_whole(external: External) -> None:
    """The plan has the type that the column had when the table was created."""
    external.run("create table named (id varchar(50) primary key)", "insert into named values ('abc'), ('abcdef')")
    column = Column(name="id", type=ColumnType.parse("text"), nullable=False)
    named = ORDERS.model_copy(update={"name": "named", "columns": (column,)})
    followed = (CdcColumn(name="id", external="id", type="character varying(3)"),)
    scan = SCAN.model_copy(update={"external_table": "named", "columns": followed})
    rows = PostgresExternalRows()
    some, _ = await rows.rows_of(external.address, scan, named, [("abcdef",)])
    assert list(some) == [("abcdef",)]
    rest, _ = await rows.digest(external.address, scan, named, Part(after=("abcdef",)))
    assert rest.rows == 0


async def test_f6_a_value_that_is_stored_as_null_is_compared_as_null(external: External) -> None:
    external.run(
        "create table days (id bigint primary key, d date)",
        "insert into days values (1, 'infinity'), (2, '2020-01-01')",
        "create table stored (like days including all)",
        "insert into stored values (1, null), (2, '2020-01-01')",
    )
    columns = (*ORDERS.columns, Column(name="d", type=ColumnType.parse("date")))
    days = ORDERS.model_copy(update={"columns": columns})
    followed = (*SCAN.columns, CdcColumn(name="d", external="d", type="date"))
    rows = PostgresExternalRows()
    found = [
        await rows.digest(external.address, SCAN.model_copy(update={"columns": followed, **scan}), days, Part())
        for scan in (
            {"external_table": "days", "unkeepable": "null"},
            {"external_table": "days"},
            {"external_table": "stored"},
        )
    ]
    nulled, whole, stored = (digest for digest, _ in found)
    assert nulled == stored != whole
