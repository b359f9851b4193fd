"""The Spark data source pushes down to Postgres the filters that mean the same there, and no others."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNull, LessThanOrEqual, Not, StringContains
from pyspark_tidefill import TidefillError, TidefillSource, condition

TYPES = {
    "i": "bigint",
    "t": "text",
    "d": "date",
    "f": "double precision",
    "z": "timestamptz",
    "u": "uuid",
    'q"': "boolean",
}


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (EqualTo(("i",), -5), '"i" = (-5)'),
        (EqualTo(("t",), "a'b\\"), "\"t\" = E'a''b\\\\'"),
        (EqualTo(('q"',), True), '"q""" = true'),
        (GreaterThan(("d",), date(2026, 1, 2)), "\"d\" > date '2026-01-02'"),
        (LessThanOrEqual(("i",), Decimal("1.5")), '"i" <= (1.5)'),
        (In(("t",), ("a", "b")), "\"t\" in ('a', 'b')"),
        (Not(IsNull(("u",))), 'not ("u" is null)'),
    ],
)
def test_a_filter_that_means_the_same_is_taken(one: Filter, text: str) -> None:
    assert condition(one, TYPES) == text


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("f",), 0.0),
        EqualTo(("u",), "00000000-0000-0000-0000-00000000000a"),
        EqualTo(("z",), datetime(2026, 1, 1, tzinfo=UTC)),
        EqualTo(("t",), "a\0"),
        EqualTo(("i", "x"), 1),
        EqualTo(("nothing",), 1),
        EqualTo(("i",), True),
        In(("t",), ("a", None)),
        Not(EqualTo(("f",), 1.0)),
        StringContains(("t",), "a"),
    ],
)
def test_any_other_is_left_to_spark(one: Filter) -> None:
    assert condition(one, TYPES) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "http://h"}, '"relation" is missing'),
        ({"relation": "r"}, '"url" is missing'),
        ({"url": "http://h", "relation": "r", "epok": "1"}, 'unknown option "epok"'),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TidefillError, match=words):
        TidefillSource(options)
