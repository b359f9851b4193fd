"""The rules of generated rows, as users write them."""

import re

import pytest

from service.protocol.columns import Column, ColumnType
from service.protocol.datagen import SPLITS_MAX, random_bits, read


def columns(**kinds: str) -> list[Column]:
    return [Column(name=name, type=ColumnType.parse(kind.replace("_", " "))) for name, kind in kinds.items()]


EVERY = columns(
    a="smallint",
    b="integer",
    c="bigint",
    d="real",
    e="double_precision",
    f="text",
    g="timestamp",
    h="timestamptz",
    i="boolean",
)


def test_splitmix64_is_the_published_sequence() -> None:
    """The first outputs of seed 1234567 in the authors' test vectors."""
    assert [random_bits(1234567, place) for place in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_splits_share_a_sequence_and_end_with_it() -> None:
    rules = read(
        {"fields.b.kind": "sequence", "fields.b.start": "10", "fields.b.end": "16", "datagen.split.num": "3"},
        columns(b="integer"),
    )
    splits = [[int(value or "") for (value,) in rules.rows(split, 0, 100)] for split in range(3)]
    assert splits == [[10, 13, 16], [11, 14], [12, 15]]
    assert [value for (value,) in rules.rows(0, 1, 1)] == ["13"], "from a position on"


def test_a_row_depends_on_its_place_alone() -> None:
    """I3: what is read again is the same, in whatever pages."""
    rules = read({}, EVERY)
    whole = list(rules.rows(0, 0, 50))
    assert [*rules.rows(0, 0, 20), *rules.rows(0, 20, 30)] == whole
    assert len(set(whole)) == len(whole)
    assert list(read({}, EVERY).rows(0, 0, 50)) == whole


def test_values_keep_their_bounds() -> None:
    options = {"fields.a.min": "-3", "fields.a.max": "3", "fields.d.max": "0.5", "fields.f.length": "7"}
    rows = list(read(options, EVERY).rows(0, 0, 2000))
    assert {int(row[0] or "") for row in rows} == set(range(-3, 4))
    assert all(0 <= float(row[3] or "") < 0.5 for row in rows)
    assert {len(row[5] or "") for row in rows} == {7}
    assert {row[8] for row in rows} == {"true", "false"}
    assert all("2025-12-31" <= (row[7] or "") <= "2026-01-01 00:00:00+00:00" for row in rows)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"a": "1"}, 'unknown option "a"'),
        ({"fields.z.kind": "random"}, 'there is no column "z"'),
        ({"fields.b.kind": "other"}, '"random" or "sequence", not "other"'),
        ({"fields.b.length": "3"}, 'unknown option "fields.b.length" of a random integer'),
        ({"fields.f.kind": "sequence"}, "a sequence is of smallint, integer or bigint"),
        ({"fields.a.max": "32768"}, 'option "fields.a.max" is a whole number from 0 to 32767, not "32768"'),
        ({"fields.b.min": "5", "fields.b.max": "4"}, "from 5 to"),
        ({"fields.d.max": "nan"}, "a finite number"),
        ({"fields.g.max_past": "1y"}, "a duration such as 30s, 5m, 2h or 1d"),
        ({"fields.g.basetime": "now"}, "an instant such as"),
        ({"datagen.split.num": str(SPLITS_MAX + 1)}, "a whole number from 1 to 256"),
        ({"datagen.rows.per.second": "0"}, "a whole number from 1 to 1000000"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        read(options, EVERY)


@pytest.mark.parametrize("kind", ["jsonb", "integer[]", "numeric(9,2)", "bytea", "interval", "date"])
def test_a_type_that_cannot_be_made_is_named(kind: str) -> None:
    with pytest.raises(ValueError, match="which datagen cannot make"):
        read({}, [Column(name="x", type=ColumnType.parse(kind))])
