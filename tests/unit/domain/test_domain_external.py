"""What an external table becomes here, and how its history is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.errors import Invalid
from service.domain.external import (
    ExternalColumn,
    ExternalIndex,
    ExternalTable,
    Generated,
    Identity,
    Publication,
    follower,
    kept_as,
    why_not_kept,
    why_not_published,
)
from service.domain.source import Retention, conninfo, retention, source_options
from service.domain.splits import even_splits, sampled_splits, wanted_splits
from service.protocol.cdc import SPLITS_MAX
from service.protocol.columns import Column, ColumnType, KeyColumn

KEPT = {
    "boolean": "boolean",
    "smallint": "smallint",
    "bigint": "bigint",
    "real": "real",
    "double precision": "double precision",
    "numeric(12,2)": "numeric(12,2)",
    "numeric(5,0)[]": "numeric(5,0)[]",
    "character varying(20)": "text",
    "character varying": "text",
    "character(3)": "text",
    '"char"': "text",
    "text[]": "text[]",
    "character varying(7)[]": "text[]",
    "bytea": "bytea",
    "date": "date",
    "time(3) without time zone": "time",
    "time with time zone": "text",
    "timestamp(3) without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "timestamp(0) with time zone[]": "timestamptz[]",
    "uuid": "uuid",
    "json": "text",
    "jsonb": "jsonb",
    "interval day to second(3)": "interval",
    "interval[]": "interval[]",
    "inet": "text",
    "public.mood": "text",
    "public.mood[]": "text[]",
    "public.citext": "text",
    "xml": "text",
    "money": "text",
    "int4range": "text",
}


@pytest.mark.parametrize(("external", "kept"), KEPT.items())
def test_a_type_is_kept_exactly_or_as_text(external: str, kept: str) -> None:
    assert str(kept_as(external)) == kept
    assert why_not_kept(external, ColumnType.parse(kept)) is None


@pytest.mark.parametrize("external", ["numeric", "numeric[]", "numeric(50,2)", "numeric(3,-2)", "numeric(2,5)"])
def test_a_number_without_bounds_is_what_its_user_says(external: str) -> None:
    assert kept_as(external) is None
    for declared in ("numeric(38,10)", "text"):
        assert why_not_kept(external, ColumnType.parse(declared)) is None
    assert why_not_kept(external, ColumnType.parse("double precision")) is not None


@pytest.mark.parametrize(
    ("external", "declared", "fits"),
    [
        ("smallint", "integer", True),
        ("smallint", "bigint", True),
        ("integer", "bigint", True),
        ("smallint[]", "bigint[]", True),
        ("real", "double precision", True),
        ("numeric(5,2)", "numeric(7,3)", True),
        ("public.mood[]", "text", True),
        ("integer", "text", True),
        ("date", "text", True),
        ("timestamp with time zone", "text", True),
        ("numeric(5,2)", "text", True),
        ("date[]", "text", True),
        ("date[]", "text[]", False),
        ("bigint", "integer", False),
        ("integer", "double precision", False),
        ("integer", "bigint[]", False),
        ("double precision", "real", False),
        ("numeric(5,2)", "numeric(5,3)", False),
        ("numeric(5,2)", "numeric(6,1)", False),
        ("json", "jsonb", False),
        ("timestamp with time zone", "timestamp", False),
        ("character varying(20)", "integer", False),
    ],
)
def test_a_declared_type_is_the_same_or_wider(external: str, declared: str, fits: bool) -> None:
    assert (why_not_kept(external, ColumnType.parse(declared)) is None) is fits


def table(*columns: ExternalColumn, **more: object) -> ExternalTable:
    given = {"indexes": (ExternalIndex(("id",), primary=True),), **more}
    return ExternalTable("public", "t", (ExternalColumn("id", "bigint", "bigint", nullable=False), *columns), **given)  # type: ignore[arg-type]


def test_columns_and_key_are_taken_over_but_what_is_computed() -> None:
    given = table(
        ExternalColumn("note", "public.short", "character varying(9)"),
        ExternalColumn("sum", "bigint", "bigint", generated=Generated.STORED),
        ExternalColumn("double", "bigint", "bigint", generated=Generated.VIRTUAL),
    )
    shape = follower(given, Publication("p"), None, (), timestamp="at")
    assert [(one.name, str(one.type), one.nullable) for one in shape.columns] == [
        ("id", "bigint", False),
        ("note", "text", True),
        ("at", "timestamptz", True),
    ]
    assert [(one.name, one.external, one.type) for one in shape.carried] == [
        ("id", "id", "bigint"),
        ("note", "note", "public.short"),
    ]
    declared = [Column(name="id", type=ColumnType.parse("bigint")), Column(name="sum", type=ColumnType.parse("bigint"))]
    key = (KeyColumn(name="id"),)
    with pytest.raises(Invalid, match="is generated, and its publication does not publish such"):
        follower(given, Publication("p"), declared, key)
    assert len(follower(given, Publication("p", generated=True), declared, key).carried) == 2
    with pytest.raises(Invalid, match="is generated"):
        follower(
            given,
            Publication("p", generated=True),
            [declared[0], Column(name="double", type=ColumnType.parse("bigint"))],
            key,
        )


@pytest.mark.parametrize(
    ("identity", "indexes", "followed"),
    [
        (Identity.DEFAULT, (ExternalIndex(("id",), primary=True),), True),
        (Identity.DEFAULT, (ExternalIndex(("id",)),), False),
        (Identity.FULL, (ExternalIndex(("id",)),), True),
        (Identity.INDEX, (ExternalIndex(("id",)), ExternalIndex(("id", "b"), identity=True)), True),
        (Identity.INDEX, (ExternalIndex(("id",), primary=True), ExternalIndex(("b",), identity=True)), False),
        (Identity.NOTHING, (ExternalIndex(("id",), primary=True),), False),
    ],
)
def test_what_a_change_says_of_the_old_row_holds_the_key(
    identity: Identity, indexes: tuple[ExternalIndex, ...], followed: bool
) -> None:
    given = table(ExternalColumn("b", "bigint", "bigint", nullable=False), identity=identity, indexes=indexes)
    columns = [Column(name="id", type=ColumnType.parse("bigint"))]
    if followed:
        assert follower(given, Publication("p"), columns, (KeyColumn(name="id"),)).key[0].name == "id"
    else:
        with pytest.raises(Invalid, match="the replica identity of"):
            follower(given, Publication("p"), columns, (KeyColumn(name="id"),))


@pytest.mark.parametrize(
    ("external", "declared", "ordered", "why"),
    [
        ("text", "text", True, None),
        ("character varying(9)", "text", True, None),
        ("uuid", "uuid", True, None),
        ("numeric", "numeric(38,0)", True, None),
        ("text", "text", False, "takes different texts for equal"),
        ("character(9)", "text", True, "has an order of its own"),
        ("public.mood", "text", True, "has an order of its own"),
        ("numeric", "text", True, "as text its numbers have another order"),
        ("date", "text", True, "date has an order of its own"),
        ("jsonb", "jsonb", True, "jsonb has an order of its own"),
        ("integer[]", "integer[]", True, "arrays cannot be keys"),
    ],
)
def test_a_key_has_the_same_order_on_both_sides(external: str, declared: str, ordered: bool, why: str | None) -> None:
    key = ExternalColumn("k", external, external, nullable=False, ordered=ordered)
    given = ExternalTable("public", "t", (key,), (ExternalIndex(("k",), primary=True),))
    columns = [Column(name="k", type=ColumnType.parse(declared))]
    if why is None:
        assert follower(given, Publication("p"), columns, (KeyColumn(name="k"),)).key[0].name == "k"
    else:
        with pytest.raises(Invalid, match=why):
            follower(given, Publication("p"), columns, (KeyColumn(name="k"),))


def test_a_publication_has_to_tell_everything() -> None:
    there = frozenset({("public", "t")})
    assert why_not_published(table(), Publication("p", there), may_add=False) is None
    assert why_not_published(table(), Publication("p"), may_add=True) is None
    for external, publication, may_add, why in (
        (table(), Publication("p"), False, 'ADD TABLE "public"."t"'),
        (table(owned=False), Publication("p"), True, "only the owner"),
        (table(), Publication("p", there, lacks=("truncate",)), True, "does not publish truncate"),
        (table(), Publication("p", there, partial=there), True, "leaves out rows or columns"),
        (table(partitioned=True), Publication("p", there, via_root=False), True, "publish_via_partition_root"),
    ):
        assert why in (why_not_published(external, publication, may_add=may_add) or "")


BIG = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(BIG, min_size=1, max_size=30), st.integers(1, 100))
def test_even_splits_hold_every_number_once(numbers: list[int], wanted: int) -> None:
    splits = even_splits(min(numbers), max(numbers), wanted)
    assert 1 <= len(splits) <= wanted
    edges = [int(one.right) for one in splits if one.right is not None]
    assert edges == sorted(set(edges))
    assert [one.left for one in splits[1:]] == [one.right for one in splits[:-1]]
    assert (splits[0].left, splits[-1].right) == (None, None)
    if len(splits) > 1:
        assert min(numbers) < edges[0]
        assert edges[-1] <= max(numbers)


@given(st.lists(st.text(max_size=3), max_size=50), st.integers(1, 60))
def test_sampled_splits_are_cut_at_values_in_their_order(values: list[str], wanted: int) -> None:
    ordered = sorted(values)
    splits = sampled_splits(ordered, wanted)
    edges = [one.right for one in splits[:-1]]
    assert len(splits) <= wanted
    assert edges == [one for one in dict.fromkeys(ordered) if one in edges]
    assert [one.left for one in splits[1:]] == edges


def test_as_many_splits_as_rows_ask_for() -> None:
    assert wanted_splits(1_000_001, rows_per_split=100_000, parallelism=2) == 11
    assert wanted_splits(5, rows_per_split=100_000, parallelism=4) == 4
    assert wanted_splits(None, rows_per_split=1, parallelism=3) == 3
    assert wanted_splits(1 << 60, rows_per_split=1, parallelism=1) == SPLITS_MAX


REACHED = {
    "connector": "postgres-cdc",
    "hostname": "a, b",
    "username": "it's",
    "database.name": "shop",
    "wal.retained.warning.bytes": "10",
    "wal.retained.max.bytes": "100",
}


def test_libpq_takes_nothing_from_the_environment() -> None:
    text = conninfo(source_options(REACHED), r"a\b'c")
    for part in ("host='a,b'", "port='5432'", r"user='it\'s'", r"password='a\\b\'c'", "sslmode='prefer'"):
        assert part in text
    assert "target_session_attrs='read-write'" in text


@pytest.mark.parametrize(
    ("action", "retained", "before", "after"),
    [
        ("pause", 5, None, None),
        ("pause", 11, None, Retention.WARNING),
        ("pause", 101, Retention.WARNING, Retention.EXCEEDED),
        ("pause", 5, Retention.EXCEEDED, None),
        ("pause", None, Retention.WARNING, Retention.WARNING),
        ("drop_slot", 101, None, Retention.SLOT_DROPPED),
        ("drop_slot", 0, Retention.SLOT_DROPPED, Retention.SLOT_DROPPED),
    ],
)
def test_what_a_slot_holds_comes_to(
    action: str, retained: int | None, before: Retention | None, after: Retention | None
) -> None:
    options = source_options({**REACHED, "wal.retained.action": action})
    assert retention(options, retained, before=before) is after


@pytest.mark.parametrize("name", ["_vnode", "_row_id", "_key_a", "_tidefill_op"])
def test_d5_a_table_with_a_reserved_name_is_followed_by_listing_the_others(name: str) -> None:
    given = table(ExternalColumn(name, "integer", "integer"))
    with pytest.raises(Invalid, match=f'column name "{name}" is reserved: list the columns, without this one'):
        follower(given, None, None, ())
