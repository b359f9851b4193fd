"""What is asked for as a parallelism, whose word counts, and what it comes to."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.errors import Invalid
from service.domain.job import Job, JobState
from service.domain.parallelism import (
    ACTORS_MAX,
    Adaptive,
    Bounded,
    Fixed,
    Parallelism,
    Ratio,
    check_actors,
    check_positions,
    check_vnodes,
    for_backfill,
    normal,
    parse_parallelism,
    resolved,
)
from service.domain.parameters import parse_session_variable
from service.protocol.ids import JobId, RelationId
from service.protocol.relation import RelationKind

COUNTS = st.integers(1, ACTORS_MAX)
PARALLELISMS: st.SearchStrategy[Parallelism] = (
    st.builds(Fixed, COUNTS)
    | st.just(Adaptive())
    | st.builds(Bounded, COUNTS)
    | st.builds(Ratio, st.decimals("0.000001", 1, places=6))
)


@given(PARALLELISMS)
def test_what_is_stored_is_read_back(parallelism: Parallelism) -> None:
    assert parse_parallelism(str(parallelism)) == parallelism


@pytest.mark.parametrize(
    ("text", "parallelism"),
    [
        ("4", Fixed(4)),
        ("32768", Fixed(32768)),
        (" Adaptive ", Adaptive()),
        ("BOUNDED( 3 )", Bounded(3)),
        ("ratio(0.5)", Ratio(Decimal("0.5"))),
        ("ratio(1)", Ratio(Decimal(1))),
    ],
)
def test_spellings(text: str, parallelism: Parallelism) -> None:
    assert parse_parallelism(text) == parallelism


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "32769",
        "1.5",
        "four",
        "bounded",
        "bounded()",
        "bounded(0)",
        "bounded(1.5)",
        "ratio(0)",
        "ratio(1.1)",
        "ratio(-1)",
        "adaptive(2)",
        "fixed(99999)",
        "٣",
    ],
)
def test_what_is_no_parallelism(text: str) -> None:
    with pytest.raises(Invalid, match="a parallelism is a number from 1 to 32768"):
        parse_parallelism(text)


@pytest.mark.parametrize(
    ("parallelism", "slots", "actors"),
    [
        (Fixed(3), 8, 3),
        (Adaptive(), 8, 8),
        (Adaptive(), 500, 256),
        (Bounded(3), 8, 3),
        (Bounded(3), 2, 2),
        (Ratio(Decimal("0.5")), 8, 4),
        (Ratio(Decimal("0.5")), 7, 3),
        (Ratio(Decimal("0.1")), 2, 1),
    ],
    ids=str,
)
def test_what_it_comes_to(parallelism: Parallelism, slots: int, actors: int) -> None:
    assert resolved(parallelism, slots=slots, vnode_count=256, scans=1) == actors


def test_i13_a_job_has_no_more_actors_than_its_worker_bears() -> None:
    """A view of 64 scans with 250 actors each kept the epoch of everybody for ever."""
    most, vnodes = Fixed(1 << 15), 1 << 15
    assert resolved(most, slots=2, vnode_count=vnodes, scans=1) == 800
    assert resolved(Fixed(250), slots=2, vnode_count=256, scans=64) == 12
    assert resolved(Fixed(250), slots=2, vnode_count=256, scans=1000) == 1
    assert resolved(most, slots=1000, vnode_count=vnodes, scans=1) == 8192
    check_actors([400, 400], slots=2)
    check_actors([1] * 1000, slots=2)
    with pytest.raises(Invalid, match=r"^the view has 2 scans of 801 actors together, and may have 800 on a worker"):
        check_actors([400, 401], slots=2)


def test_a_view_has_no_more_positions_than_a_barrier_can_carry() -> None:
    check_positions([1 << 15] * 8)
    with pytest.raises(Invalid, match=r"^the view has 9 scans of 294912 vnodes together, and may have 262144: "):
        check_positions([1 << 15] * 9)


def test_more_actors_than_vnodes_are_refused_in_the_references_words() -> None:
    check_vnodes(Fixed(256), 256)
    check_vnodes(Bounded(257), 256)
    check_vnodes(None, 1)
    with pytest.raises(Invalid, match=r"^specified parallelism 257 should not exceed max parallelism 256$"):
        check_vnodes(Fixed(257), 256)
    with pytest.raises(Invalid, match=r"^specified backfill parallelism 9 should not exceed max parallelism 8$"):
        check_vnodes(Fixed(9), 8, backfill=True)


@pytest.mark.parametrize(
    ("session", "once_created", "until_then"),
    [
        ({}, Adaptive(), None),
        ({"": "3"}, Fixed(3), None),
        ({"_for_sink": "5"}, Adaptive(), None),
        ({"": "3", "_for_materialized_view": "2"}, Fixed(2), None),
        ({"": "3", "_for_materialized_view": "default"}, Fixed(3), None),
        ({"": "3", "_for_materialized_view": "2", "_for_backfill": "1"}, Fixed(2), Fixed(1)),
        ({"_for_materialized_view": "bounded(4)", "_for_backfill": "default"}, Bounded(4), None),
    ],
    ids=str,
)
def test_the_variable_of_the_kind_wins_and_the_one_for_the_backfill_over_both_until_it_is_created(
    session: dict[str, str], once_created: Parallelism, until_then: Parallelism | None
) -> None:
    given = {f"streaming_parallelism{name}": value for name, value in session.items()}
    assert (normal(given, RelationKind.MATERIALIZED_VIEW), for_backfill(given)) == (once_created, until_then)


def test_what_holds_depends_on_the_state() -> None:
    instant = datetime(2026, 1, 1, tzinfo=UTC)
    job = Job(
        JobId(1),
        RelationId(1),
        "m",
        RelationKind.MATERIALIZED_VIEW,
        "..",
        JobState.CREATING,
        True,
        instant,
        parallelism=Fixed(4),
        backfill_parallelism=Fixed(1),
    )
    assert job.present_parallelism == Fixed(1)
    assert replace(job, state=JobState.CREATED).present_parallelism == Fixed(4)
    assert replace(job, backfill_parallelism=None).present_parallelism == Fixed(4)


@pytest.mark.parametrize(
    ("name", "text", "normal_text"),
    [
        ("streaming_parallelism", "ADAPTIVE", "adaptive"),
        ("streaming_parallelism", "fixed(3)", "3"),
        ("streaming_parallelism_for_table", "bounded(3)", "bounded(3)"),
        ("streaming_parallelism_for_backfill", "2", "2"),
        ("streaming_parallelism_for_backfill", "default", "default"),
        ("streaming_max_parallelism", "32768", "32768"),
    ],
)
def test_variables_of_the_session(name: str, text: str, normal_text: str) -> None:
    assert parse_session_variable(name, text) == normal_text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("streaming_parallelism_for_backfill", "adaptive", "Only `default` or fixed backfill parallelism is supported"),
        (
            "streaming_parallelism_for_backfill",
            "bounded(2)",
            "adaptive backfill strategy is deferred to a later change.",
        ),
        ("streaming_parallelism_for_backfill", "0", "Only `default` or fixed backfill parallelism is supported"),
        ("streaming_parallelism_for_backfill", "-1", "Only `default` or fixed backfill parallelism is supported"),
        (
            "streaming_parallelism_for_backfill",
            "40000",
            '"streaming_parallelism_for_backfill": a parallelism is a number',
        ),
        ("streaming_parallelism", "many", '"streaming_parallelism": a parallelism is a number'),
        ("streaming_max_parallelism", "32769", "takes at most 32768"),
        ("streaming_max_parallelism", "0", "positive integer"),
    ],
)
def test_variables_that_are_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        parse_session_variable(name, text)
