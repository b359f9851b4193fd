"""Whether the columns of an external table are still those that are followed: every way in which two looks differ."""

from itertools import product

import pytest

from service.protocol.cdc import CdcColumn, ExternalColumn, Shape
from workers.cdc.drift import Drift, drift, keeps_values, named_otherwise

ID = ExternalColumn(number=1, name="id", type="bigint", version="700", collation="0", sent=True)
B = ExternalColumn(number=2, name="b", type="text", version="700", collation="100", sent=True)
C = ExternalColumn(number=3, name="c", type="mood", version="700", collation="0", sent=True, labels={"9": "ok"})
FOLLOWED = [CdcColumn(name=column.name, external=column.name, type=column.type) for column in (ID, B, C)]


def shape(*columns: ExternalColumn, storage: str = "1") -> Shape:
    return Shape(digest="", storage=storage, columns=columns)


def altered(column: ExternalColumn, **how: object) -> ExternalColumn:
    return column.model_copy(update=how)


BEFORE = shape(ID, B, C)
OTHER = altered(B, number=4)

REASONS: list[tuple[Shape, str]] = [
    (shape(ID, C), 'its column "b" was dropped, and a column of this name has to be there first'),
    (shape(ID, C, OTHER), 'its column "b" was dropped, and another column has its name now'),
    (
        shape(ID, altered(B, name="x"), C),
        'its column "b" was renamed to "x", and a column of this name has to be there first',
    ),
    (
        shape(ID, altered(B, name="x"), C, OTHER),
        'its column "b" was renamed to "x", and another column has its name now',
    ),
    (
        shape(ID, altered(B, name="c"), altered(C, name="b")),
        'its column "b" was renamed to "c", and another column has its name now',
    ),
    (shape(ID, altered(B, type="integer"), C), 'its column "b" is now of type integer, not text'),
    (
        shape(ID, B, altered(C, labels={"9": "fine"})),
        'the value "ok" of the type of its column "c" is now called "fine"',
    ),
    (shape(ID, B, altered(C, labels=None)), 'the value "ok" of the type of its column "c" is now dropped'),
    (
        shape(ID, B, altered(C, parts={"5.1": "23"})),
        'the type of its column "c" was altered, so that its values have another text',
    ),
]


@pytest.mark.parametrize("storage", ["1", "2"])
@pytest.mark.parametrize(("now", "reason"), REASONS)
def test_f1_a_column_that_is_another_one_is_named_with_the_cause(now: Shape, reason: str, storage: str) -> None:
    assert drift(FOLLOWED, BEFORE, now.model_copy(update={"storage": storage})).reason == reason


@pytest.mark.parametrize(("storage", "version", "typed"), [*product(("1", "2"), ("700", "800"), ("text", "integer"))])
def test_f1_only_a_rewrite_together_with_an_alteration_is_doubted(storage: str, version: str, typed: str) -> None:
    """Of one column, whose type changes or does not. A doubt is for a type that stays."""
    column = altered(B, version=version, type=typed)
    found = drift(FOLLOWED, BEFORE, shape(ID, column, C, storage=storage))
    if typed == "integer":
        assert found.reason is not None
    else:
        both = storage == "2" and version == "800"
        assert found == Drift(None, (column,) if both else ())


@pytest.mark.parametrize(
    "now",
    [
        BEFORE,
        shape(ID, B, C, altered(B, number=4, name="new")),
        shape(ID, B, altered(C, labels={"9": "ok", "10": "better"})),
        shape(ID, altered(B, collation="200"), C),
        shape(ID, altered(B, version="800"), C),
        shape(ID, B, C, storage="2"),
        shape(ID, B, C, altered(B, number=4, name="new", version="900"), storage="2"),
    ],
)
def test_f1_what_does_not_matter_changes_nothing(now: Shape) -> None:
    assert drift(FOLLOWED, BEFORE, now) == Drift()


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        ("character varying(20)", "character varying(50)", True),
        ("character varying(20)", "character varying", True),
        ("character varying(20)", "text", True),
        ("character varying", "text", True),
        ("text", "character varying", True),
        ("numeric(10,2)", "numeric(12,2)", True),
        ("numeric(10,2)", "numeric", True),
        ("timestamp(3) with time zone", "timestamp(6) with time zone", True),
        ("timestamp(3) with time zone", "timestamp with time zone", True),
        ("bit varying(3)", "bit varying(4)", True),
        ("character varying(20)", "character varying(19)", False),
        ("text", "character varying(50)", False),
        ("numeric(10,2)", "numeric(9,2)", False),
        ("numeric(10,2)", "numeric(12,3)", False),
        ("numeric", "numeric(12,2)", False),
        ("numeric(10,2)", "text", False),
        ("timestamp(3) with time zone", "timestamp(6) without time zone", False),
        ("character(3)", "character(4)", False),
        ("character(3)", "text", False),
        ("character varying(20)[]", "character varying(50)[]", False),
        ("integer", "bigint", False),
        ("public.pos", "public.neg", False),
    ],
)
def test_f6_a_wider_type_keeps_all_values(before: str, now: str, *, kept: bool) -> None:
    assert keeps_values(before, now) == kept
    followed = [CdcColumn(name="id", external="id", type=before)]
    found = drift(followed, shape(altered(ID, type=before)), shape(altered(ID, type=now, version="800")))
    assert found.reason == (None if kept else f'its column "id" is now of type {now}, not {before}')
    both = drift(followed, shape(altered(ID, type=before)), shape(altered(ID, type=now, version="800"), storage="2"))
    assert len(both.doubted) == kept


def test_f1_a_column_that_is_not_followed_may_be_rewritten() -> None:
    now = shape(ID, altered(B, version="800", type="integer"), C, storage="2")
    assert drift([FOLLOWED[0], FOLLOWED[2]], BEFORE, now) == Drift()


def test_f1_the_order_of_the_key_counts_while_history_is_read() -> None:
    now = shape(ID, altered(B, collation="200"), C)
    assert drift(FOLLOWED, BEFORE, now, ordered=("id",)) == Drift()
    reason = drift(FOLLOWED, BEFORE, now, ordered=("b",)).reason
    assert reason == 'the collation of its key column "b" was changed while its history was read'


NAMES = shape(ID, B, C)
MORE = shape(ID, B, C, altered(B, number=4, name="d"))


@pytest.mark.parametrize(
    ("sent", "before", "now", "otherwise"),
    [
        ("id b c", NAMES, NAMES, False),
        ("id b c new", NAMES, NAMES, False),
        ("id b c d", NAMES, MORE, False),
        ("id b c", NAMES, MORE, False),
        ("id b c", MORE, NAMES, False),
        ("id b c d", MORE, NAMES, False),
        ("id c b", NAMES, NAMES, True),
        ("id b", NAMES, NAMES, True),
        ("id b d", NAMES, NAMES, True),
        ("id x b c", NAMES, NAMES, True),
        ("id b x", NAMES, NAMES, True),
        ("id b x", MORE, MORE, True),
        ("id c b d", MORE, MORE, True),
        # A column that is dropped at the second look may still be there, or not.
        ("id b c", NAMES, shape(ID, C), False),
        ("id c", NAMES, shape(ID, C), False),
        ("id x c", NAMES, shape(ID, C), True),
        # A column that has another name at the second look may have either.
        ("id b c", NAMES, shape(ID, altered(B, name="x"), C), False),
        ("id x c", NAMES, shape(ID, altered(B, name="x"), C), False),
        ("id y c", NAMES, shape(ID, altered(B, name="x"), C), True),
        # A generated column is not in the log.
        ("id c", shape(ID, altered(B, sent=False), C), shape(ID, altered(B, sent=False), C), False),
    ],
)
def test_f1_names_in_the_log_are_explained_by_two_looks(sent: str, before: Shape, now: Shape, otherwise: bool) -> None:
    assert named_otherwise(sent.split(), before, now) is otherwise
