"""The options of a sink into a Delta table."""

import pytest

from service.protocol import delta
from service.protocol.columns import Column, ColumnType

COLUMNS = [
    Column(name=name, type=ColumnType.parse(kind))
    for name, kind in {
        "id": "bigint",
        "day": "date",
        "whole": "numeric(10)",
        "price": "numeric(10, 2)",
        "at": "timestamptz",
        "raw": "bytea",
        "ratio": "double precision",
        "many": "int[]",
    }.items()
]
S3 = {"s3.region": "eu-west-1", "s3.access.key": "a", "s3.secret.key": "hidden"}


def read(**options: str) -> delta.DeltaOptions:
    return delta.read({"location": "/data/t", **options}, COLUMNS, ["id"])


@pytest.mark.parametrize("location", ["s3://lake/a/b=c", "s3a://lake/a/b=c/"])
def test_a_location_in_an_object_store_has_credentials_that_are_not_shown(location: str) -> None:
    read_ = read(location=location, **S3, **{"s3.endpoint": "http://minio:9000/"})
    assert read_.location == "s3://lake/a/b=c"
    assert read_.store == delta.ObjectStore("http://minio:9000", "eu-west-1", "a", "hidden")
    assert "hidden" not in repr(read_)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"location": "s3://lake", **S3}, "s3://bucket/path"),
        ({"location": "s3://lake/a//b", **S3}, "s3://bucket/path"),
        ({"location": "s3://lake/a/../b", **S3}, "s3://bucket/path"),
        ({"location": "s3://lake/..", **S3}, "s3://bucket/path"),
        ({"location": "s3://u:p@lake/a", **S3}, "s3://bucket/path"),
        ({"location": "s3://lake/a%20b", **S3}, "s3://bucket/path"),
        ({"location": "gs://lake/a", **S3}, "absolute path"),
        ({"location": "s3://lake/a"}, "s3.access.key is missing"),
        ({"location": "s3://lake/a", "s3.access.key": "a"}, "s3.secret.key is missing"),
        ({"location": "s3://lake/a", **S3, "s3.region": ""}, "s3.region is missing"),
        ({"location": "s3://lake/a", **S3, "s3.endpoint": "minio:9000"}, "s3.endpoint is an address"),
        ({"location": "s3://lake/a", **S3, "s3.endpoint": "http://u:p@minio"}, "s3.endpoint is an address"),
        (S3, "s3.access.key is for a location such as s3://bucket/path"),
    ],
)
def test_what_is_no_object_store_is_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        read(**options)
    assert "hidden" not in str(refused.value)


def test_partitions_are_columns_in_their_order() -> None:
    assert read(partition_by="day, id,whole, day").partitions == ("day", "id", "whole")
    assert read(partition_by="at", type="append-only").partitions == ("at",)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("", 'no column ""'),
        ("day, none", 'no column "none"'),
        ("raw", '"raw" cannot be one: its values are no texts'),
        ("many", '"many" cannot be one: it is an array'),
        ("ratio", '"ratio" cannot be one: its values are not exact'),
        ("price", "negative fractions"),
        ("at", "leaves out the time zone"),
    ],
)
def test_what_cannot_be_a_partition_is_refused(columns: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(partition_by=columns)


def test_a_table_is_more_than_its_partitions() -> None:
    with pytest.raises(ValueError, match="has other columns besides"):
        delta.read({"location": "/t", "partition_by": "id, day"}, COLUMNS[:2], ["id"])
