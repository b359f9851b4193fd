"""Delta tables that are read in place: pages and changes, against what delta-rs itself reads of each version."""

import random
import zipfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.delta import DeltaPlace
from service.protocol.delta_source import chosen_columns, delta_columns, source_place
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind
from tests.support.lakes import SECRET, bucket, expand, object_store
from tests.support.sampling import sampled
from workers.backfill.positions import PageSize, Positions, Span, pages
from workers.connectors import delta_rows, parquet_rows
from workers.connectors.delta_rows import changes_of, page_of
from workers.connectors.delta_shape import shape_of
from workers.connectors.delta_watch import Watch, describe
from workers.connectors.port import RefusedRowError, RefusedTableError
from workers.state_store.port import CLOSE, LIVE, VNODE

MARKED: Final = Path(__file__).parents[2] / "support" / "data" / "delta_marked.zip"
"""A table of Spark with deletion vectors: INSERT, DELETE, UPDATE, MERGE, OPTIMIZE, DELETE, RESTORE, a new column."""
VNODES: Final = 8
Row = tuple[Any, ...]


def relation_of(location: Path, columns: Sequence[Column] | None = None) -> Relation:
    schema = DeltaTable(location).schema().to_json()
    chosen = chosen_columns(delta_columns(schema), columns, ["id"])
    key = (KeyColumn(name="id"),)
    return Relation(id=RelationId(5), name="t", kind=RelationKind.TABLE, columns=chosen, key=key, vnode_count=VNODES)


def place(location: Path) -> DeltaPlace:
    return DeltaPlace(location=str(location))


def tuples(relation: Relation, rows: pa.Table | pa.RecordBatch) -> list[Row]:
    """Return rows with numbers as texts, as they travel."""

    def shown(value: Any) -> Any:
        return str(value) if isinstance(value, Decimal) else tuple(value) if isinstance(value, list) else value

    names = [column.name for column in relation.columns]
    return [tuple(shown(row.get(name)) for name in names) for row in rows.to_pylist()]


def there(relation: Relation, location: Path, version: int) -> list[Row]:
    """Return what delta-rs reads."""
    return sorted(tuples(relation, pa.table(DeltaTable(location, version=version).scan())), key=repr)


def paged(relation: Relation, location: Path, version: int, size: int, permits: int | None) -> list[Row]:
    """Return all rows, read in pages. With `permits` each call reads so many, as in an epoch with a limit."""
    positions = Positions(((0, VNODES - 1),), block_vnodes=4)
    found: list[Row] = []
    while not positions.completed:
        before = positions.rows
        read = pages(
            positions,
            lambda block, wanted: page_of(place(location), relation, version, block, size=wanted),
            page_rows=lambda: size,
            permits=permits,
            more_time=lambda: True,
        )
        for page in read:
            for batch in page.batches:
                assert batch.schema.names[0] == VNODE
                found += tuples(relation, batch)
        assert permits is None or positions.rows - before <= permits
    assert positions.rows == len(found)
    return sorted(found, key=repr)


def check_pages(relation: Relation, location: Path, version: int) -> None:
    wanted = there(relation, location, version)
    assert paged(relation, location, version, 1000, None) == wanted
    assert paged(relation, location, version, 3, None) == wanted
    assert paged(relation, location, version, 5, 7) == wanted


def check_changes(relation: Relation, location: Path, after: int, upto: int) -> None:
    """Applied to the rows before, the changes give the rows after. What they end was there, and is no more."""
    key = relation.columns.index(relation.column("id"))
    rows, ended = {row[key]: row for row in there(relation, location, after)}, dict[Any, Row]()
    for operation, batch in changes_of(place(location), relation, after, upto):
        for row in tuples(relation, batch):
            if operation == CLOSE:
                assert rows.pop(row[key]) == row
                ended[row[key]] = row
            else:
                assert row[key] not in rows
                assert ended.get(row[key]) != row
                rows[row[key]] = row
    assert sorted(rows.values(), key=repr) == there(relation, location, upto)


def check_all_changes(relation: Relation, location: Path) -> None:
    """Compare the changes from each version to the next one and to the newest one."""
    newest = DeltaTable(location).version()
    for after in range(newest):
        check_changes(relation, location, after, newest)
        check_changes(relation, location, after, after + 1)


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    with zipfile.ZipFile(MARKED) as archive:
        archive.extractall(tmp_path / "marked")
    return tmp_path / "marked"


def test_a_table_of_spark_with_marked_rows_is_read_at_each_version(marked: Path) -> None:
    relation = relation_of(marked)
    newest = DeltaTable(marked).version()
    for version in range(newest + 1):
        check_pages(relation, marked, version)
    for after in range(newest):
        for upto in range(after + 1, newest + 1):
            check_changes(relation, marked, after, upto)


def made(ids: Sequence[int], draw: random.Random) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "city": pa.array([draw.choice(["O slo", "Ber/gen", "é%25", None]) for _ in ids]),
            "day": pa.array([draw.choice([None, 19_000, 20_000]) for _ in ids], pa.date32()),
            "amount": pa.array([Decimal(draw.randrange(-500, 500)).scaleb(-2) for _ in ids], pa.decimal128(10, 2)),
            "at": pa.array([draw.randrange(2**50) for _ in ids], pa.timestamp("us", "UTC")),
            "small": pa.array([draw.randrange(100) for _ in ids], pa.int8()),
            "tags": pa.array([["a", str(one)] if one % 2 else None for one in ids], pa.list_(pa.string())),
        }
    )


@pytest.mark.parametrize(
    ("parts", "fed"),
    sampled(
        [
            ([], False),
            ([], True),
            (["city", "day"], False),
            (["city"], True),
            (["city"], False),
            (["city", "day"], True),
        ],
        3,
    ),
)
def test_random_commits_are_read_at_each_version(
    tmp_path: Path, fed: bool, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_rows, "PIECE_ROWS", 7)
    draw, location = random.Random(f"{fed}{parts}"), tmp_path / "t"
    configuration = {"delta.enableChangeDataFeed": "true"} if fed else {}
    write_deltalake(location, made(range(40), draw), partition_by=parts or None, configuration=configuration)
    for turn in range(8):
        table, low = DeltaTable(location), draw.randrange(60)
        match draw.choice(["append", "update", "delete", "merge", "compact"]):
            case "append":
                write_deltalake(location, made(range(100 + 10 * turn, 105 + 10 * turn), draw), mode="append")
            case "update":
                table.update(updates={"amount": "amount + 1"}, predicate=f"id >= {low} and id < {low + 9}")
            case "delete":
                table.delete(f"id >= {low} and id < {low + 4}")
            case "compact":
                table.optimize.compact()
            case _:
                source = made(range(low, low + 8), draw)
                merge = table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
                merge.when_matched_update_all().when_not_matched_insert_all().execute()
    relation = relation_of(location)
    for version in range(DeltaTable(location).version() + 1):
        check_pages(relation, location, version)
    check_all_changes(relation, location)
    monkeypatch.setattr(delta_rows, "CHANGES_MAX", 40)
    check_all_changes(relation, location)


def test_i8_of_many_changes_a_part_of_the_keys_is_held_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, held = tmp_path / "t", list[int]()
    write_deltalake(location, made(range(400), random.Random(1)))
    write_deltalake(location, made(range(200, 600), random.Random(2)), mode="overwrite")
    net = delta_rows._net  # pyright: ignore[reportPrivateUsage] - what it gets is what is held

    def noted(every: pa.Table, key: Sequence[str]) -> object:
        held.append(every.num_rows)
        return net(every, key)

    monkeypatch.setattr(delta_rows, "_net", noted)
    monkeypatch.setattr(delta_rows, "CHANGES_MAX", 100)
    check_changes(relation_of(location), location, 0, 1)
    # 800 rows in eight parts, for the old rows and for the new ones.
    assert len(held) == 16
    assert max(held) < 200


def test_a_watch_goes_as_far_as_the_columns_stay(tmp_path: Path) -> None:
    location, draw = tmp_path / "t", random.Random(1)
    write_deltalake(location, made(range(3), draw))
    relation = relation_of(location, [Column(name="id", type=ColumnType.parse("bigint"))])
    watch = Watch(place(location), relation, 0)
    write_deltalake(location, made(range(3, 6), draw), mode="append")
    wider = made(range(6, 8), draw).append_column("more", pa.array([1, 2]))
    write_deltalake(location, wider, mode="append", schema_mode="merge")
    watch.look()
    assert (watch.newest, watch.broken) == (2, None)
    write_deltalake(location, pa.table({"id": ["x"]}), mode="overwrite", schema_mode="overwrite")
    watch.look()
    assert watch.newest == 2
    assert watch.broken == 'version 3: column "id" was bigint, and is text'


def test_i13_an_action_that_takes_long_to_parse_is_not_parsed(tmp_path: Path) -> None:
    """The worker was lost while it parsed an action of 90 MB, and so was the next worker."""
    location = tmp_path / "t"
    write_deltalake(location, made(range(3), random.Random(1)))
    watch = Watch(place(location), relation_of(location), 0)
    with (location / f"_delta_log/{1:020}.json").open("w") as log:
        log.write(f'{{"commitInfo": {{"notes": [{"[]," * 2_000_000}[]]}}}}')
    watch.look()
    assert watch.broken == "version 1: an action in the log of version 1 has more than 4 MB"
    assert watch.newest == 0


def test_i13_a_log_that_expands_beyond_its_memory_is_refused(tmp_path: Path) -> None:
    """A checkpoint of 2 MB fills a quarter of a gigabyte when a program reads it."""
    location = tmp_path / "t"
    write_deltalake(location, made(range(3), random.Random(1)))
    expand(location)
    with pytest.raises(RefusedTableError, match="takes more than 300 MB of memory to read"):
        shape_of(place(location), memory=300 << 20)
    assert shape_of(place(location)).version == 0


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    location = tmp_path / "t"
    with pytest.raises(RefusedTableError, match="there is no Delta table at"):
        describe({"location": str(location)})
    write_deltalake(location, pa.table({"id": pa.array([1, None], pa.int64())}))
    relation = relation_of(location)
    with pytest.raises(RefusedRowError, match='column "id" of the primary key is NULL'):
        paged(relation, location, 0, 10, None)
    for file in location.glob("*.parquet"):
        file.unlink()
    with pytest.raises(RefusedTableError, match="VACUUM has removed"):
        paged(relation, location, 0, 10, None)
    with pytest.raises(RefusedTableError, match="version 7 is no longer in the log"):
        list(changes_of(place(location), relation, 6, 7))
    nested = tmp_path / "nested"
    write_deltalake(nested, pa.table({"id": [1], "where": [{"x": 1}]}))
    with pytest.raises(ValueError, match=r'column "where" is a struct, .* Name the others instead'):
        relation_of(nested)
    assert [one.name for one in relation_of(nested, [Column(name="id", type=ColumnType.parse("bigint"))]).columns]
    with pytest.raises(ValueError, match='column "id" is bigint there, not text'):
        relation_of(nested, [Column(name="id", type=ColumnType.parse("text"))])


def test_i5_a_table_whose_storage_is_away_says_so_and_goes_on(tmp_path: Path) -> None:
    location = tmp_path / "lake/t"
    write_deltalake(location, pa.table({"id": pa.array([1], pa.int64())}))
    watch = Watch(place(location), relation_of(location), 0)
    watch.try_to_look()
    assert (watch.waiting, watch.newest) == (None, 0)
    (tmp_path / "lake").rename(tmp_path / "away")
    watch.try_to_look()
    assert watch.waiting == f"{location} cannot be read now, and is tried again by itself: its Delta table is away"
    (tmp_path / "away").rename(tmp_path / "lake")
    write_deltalake(location, pa.table({"id": pa.array([2], pa.int64())}), mode="append")
    watch.try_to_look()
    assert (watch.waiting, watch.broken, watch.newest) == (None, None, 1)


def test_a_table_in_an_object_store_is_read_as_one_in_a_folder() -> None:
    draw = random.Random(3)
    with object_store() as address:
        lake = bucket(address)
        location, options = f"{lake.location}/t", {**lake.options, "location": f"{lake.location}/t"}
        write_deltalake(location, made(range(20), draw), partition_by=["city"], storage_options=lake.storage)
        write_deltalake(location, made(range(20, 25), draw), mode="append", storage_options=lake.storage)
        lake.table().delete("id < 5")
        shape, there_ = describe(options), source_place(options)
        columns = chosen_columns(delta_columns(shape.schema), None, ["id"])
        key = (KeyColumn(name="id"),)
        relation = Relation(
            id=RelationId(5), name="t", kind=RelationKind.TABLE, columns=columns, key=key, vnode_count=VNODES
        )
        watch = Watch(there_, relation, 0)
        watch.look()
        assert watch.newest == shape.version == 2
        block = [Span(vnode) for vnode in range(VNODES)]
        page = page_of(there_, relation, 1, block, size=PageSize(1000, exact=False))
        assert sum(page.rows.values()) == 25
        changes = [(operation, batch.num_rows) for operation, batch in changes_of(there_, relation, 0, 2)]
        assert changes == [(CLOSE, 5), (LIVE, 5)]
        assert SECRET not in repr(there_)
