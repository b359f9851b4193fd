"""The arithmetic of the benchmark."""

import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.figures import (
    Figure,
    Section,
    Sign,
    Target,
    as_json,
    of_samples,
    per_second,
    percentile,
    ratio,
    shown,
    table,
)

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)
FRACTIONS = st.floats(0.001, 1)


@pytest.mark.parametrize(
    ("values", "fraction", "expected"),
    [
        ([7.0], 0.5, 7),
        ([7.0], 0.99, 7),
        ([3, 1, 2], 0.5, 2),
        ([4, 1, 3, 2], 0.5, 2),
        (range(1, 101), 0.99, 99),
        (range(1, 101), 0.07, 7),
        (range(1, 100), 0.99, 99),
        (range(1, 201), 0.99, 198),
        ([1, 1, 1, 9], 0.75, 1),
        ([1, 2, 3], 1, 3),
    ],
)
def test_a_percentile_is_the_nearest_rank(values: list[float], fraction: float, expected: float) -> None:
    assert percentile(values, fraction) == expected


@given(VALUES, FRACTIONS)
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[float], fraction: float) -> None:
    found = percentile(values, fraction)
    assert found in values
    wanted = fraction * len(values) - 1e-6
    assert sum(value <= found for value in values) >= wanted
    assert all(sum(value <= lower for value in values) < wanted + 2e-6 for lower in values if lower < found)


@given(VALUES)
def test_order_does_not_matter(values: list[float]) -> None:
    assert percentile(values, 0.9) == percentile(sorted(values, reverse=True), 0.9)


@pytest.mark.parametrize(("values", "fraction"), [([], 0.5), ([1.0], 0), ([1.0], 1.01), ([1.0], -0.5)])
def test_what_has_no_percentile_is_refused(values: list[float], fraction: float) -> None:
    with pytest.raises(ValueError, match=r"percentile|fraction"):
        percentile(values, fraction)


def test_a_ratio_needs_both_sides() -> None:
    assert ratio(3, 4) == 0.75
    assert ratio(None, 4) is None
    assert ratio(3, None) is None
    for base in (0, -1):
        with pytest.raises(ValueError, match="nothing compares"):
            ratio(3, base)


def test_rates_are_of_the_same_rows() -> None:
    assert per_second(100, [2, 4]) == (50, 25)


@given(VALUES)
def test_the_median_of_samples_counts_and_all_are_kept(values: list[float]) -> None:
    figure = of_samples("a", values, "s")
    assert figure.value == statistics.median(values)
    assert figure.samples == tuple(values)


def test_without_samples_nothing_was_measured() -> None:
    figure = of_samples("a", [], "s", note="why")
    assert (figure.value, figure.note) == (None, "why")
    assert "not measured" in table([Section("t", (figure,))])


@pytest.mark.parametrize(
    ("sign", "below", "at", "above"),
    [(">=", False, True, True), ("<=", True, True, False), ("<", True, False, False)],
)
def test_a_target_knows_its_side(sign: Sign, *, below: bool, at: bool, above: bool) -> None:
    target = Target(sign, 0.5)
    assert [target.met(value) for value in (0.4, 0.5, 0.6)] == [below, at, above]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (2, "2"), (0.8, "0.80"), (12.345, "12.3"), (123.4, "123"), (1_234_567.8, "1,234,568"), (-0.25, "-0.25")],
)
def test_numbers_are_shown_with_the_digits_that_count(value: float, text: str) -> None:
    assert shown(value) == text


def test_the_table_shows_targets_beside_figures_and_says_which_are_missed() -> None:
    sections = [
        Section(
            "Speed",
            (
                Figure("fast", 0.9, "x", Target(">=", 0.8)),
                Figure("slow", 0.7, "x", Target(">=", 0.8), "busy", (0.5, 0.7, 0.9)),
                Figure("unknown", None, "x", Target(">=", 0.8), "no driver"),
            ),
        )
    ]
    assert table(sections).splitlines() == [
        "Speed",
        "  fast           0.90 x  >= 0.80  met",
        "  slow           0.70 x  >= 0.80  MISSED  3 runs: 0.50 to 0.90; busy",
        "  unknown  not measured  >= 0.80          no driver",
    ]
    (section,) = json.loads(json.dumps(as_json(sections)))
    assert section["section"] == "Speed"
    assert [(figure["value"], figure["met"]) for figure in section["figures"]] == [
        (0.9, True),
        (0.7, False),
        (None, None),
    ]
    assert section["figures"][1]["samples"] == [0.5, 0.7, 0.9]
