"""F6: which new columns of an external table are taken up, and why others are left out."""

from service.domain.external import ExternalColumn as Described
from service.domain.external import ExternalTable
from service.domain.new_columns import NewColumns, columns_of, new_columns
from service.protocol.cdc import CdcColumn, CdcScan, CdcSource, ExternalColumn, Published, Shape, Split
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import RelationId, SourceId
from service.protocol.relation import Relation, RelationKind


def relation(*names: str) -> Relation:
    columns = tuple(Column(name=name, type=ColumnType.parse("bigint"), nullable=name != "id") for name in names)
    return Relation(
        id=RelationId(1), name="t", kind=RelationKind.TABLE, columns=columns, key=(KeyColumn(name="id"),), vnode_count=4
    )


def scan(there: dict[str, str], *, sent: bool = True, all_columns: bool = True, stamp: str | None = None) -> CdcScan:
    columns = tuple(
        ExternalColumn(number=n, name=name, type=kind, version="1", collation="0", sent=sent)
        for n, (name, kind) in enumerate(there.items())
    )
    shape = Shape(digest="d", storage="s", columns=columns)
    return CdcScan(
        source=CdcSource(id=SourceId(1), name="pg", slot="s", publication="p", offset="0/0"),
        external_schema="public",
        external_table="t",
        columns=(CdcColumn(name="id", external="id", type="bigint"),),
        split_column="id",
        splits=(Split(),),
        readable_after=0,
        timestamp=stamp,
        published=Published(system=None, table="1", publication="1", entries=(), shape=shape),
        all_columns=all_columns,
    )


def test_f6_new_columns_are_wanted_in_their_order() -> None:
    found = new_columns(scan({"id": "bigint", "b": "integer", "a": "public.mood"}), relation("id"))
    assert found == NewColumns(("b", "a"), {})
    assert found.note() is None
    assert found.note("because") == 'new column "b" is left out: because; new column "a" is left out: because'


def test_f6_a_column_that_cannot_be_kept_is_left_out_with_the_reason() -> None:
    there = {"id": "bigint", "n": "numeric", "xmin_": "text", "_vnode": "bigint", "at": "timestamp with time zone"}
    found = new_columns(scan(there, stamp="at"), relation("id", "at"))
    assert found.wanted == ("xmin_",)
    assert list(found.left_out) == ["n", "_vnode", "at"]
    assert "numeric has to be declared" in (found.note() or "")
    assert 'new column "_vnode" is left out: column name "_vnode" is reserved' in (found.note() or "")


def test_f6_nothing_is_new() -> None:
    there = {"id": "bigint", "b": "integer"}
    # A named list of columns, one that the log does not have, one whose reload is about to begin, and no look yet.
    assert new_columns(scan(there, all_columns=False), relation("id")) == NewColumns()
    assert new_columns(scan(there, sent=False), relation("id")) == NewColumns()
    assert new_columns(scan(there), relation("id", "b")) == NewColumns()
    assert new_columns(scan(there).model_copy(update={"published": None}), relation("id")) == NewColumns()


def test_f6_new_columns_take_null_and_have_the_type_of_a_created_table() -> None:
    described = (
        Described("id", "bigint", "bigint"),
        Described("d", "public.cents", "integer", nullable=False),
        Described("n", "public.amount", "numeric"),
    )
    columns = columns_of(ExternalTable("public", "t", described), ("d", "n", "gone"))
    assert [(one.name, str(one.type), one.nullable) for one in columns] == [
        ("d", "integer", True),
        ("n", "text", True),
    ]


def test_f6_a_column_that_is_not_carried_yet_is_not_written() -> None:
    given = scan({"id": "bigint"}, stamp="at")
    assert [one.name for one in given.carried(relation("id", "at", "b")).columns] == ["id", "at"]
