"""The digits behind the point that all values of an expression have (I12)."""

import pytest

from service.sql.queries.nodes import printed
from service.sql.queries.scales import row_scale, scale_of
from tests.support.trees import tree_of

SCALES = {("i1", "n"): 2, ("i1", "i"): 0, ("i1", "m"): 4}


@pytest.mark.parametrize(
    ("text", "scale"),
    [
        ('"i1"."n"', 2),
        ('("i1"."n" + "i1"."m")', 4),
        ('("i1"."n" * -"i1"."m")', 6),
        ('("i1"."i" * 1.50)', 2),
        ("1e-3 - 2", 3),
        ('"i1"."u"::numeric(38, 3)', 3),
        ('"i1"."u"::bigint', 0),
        ('"i1"."n"::numeric', 2),
        ("'1.250'::numeric", 3),
        ('coalesce("i1"."n", 0.00)', 2),
        ('case when "i1"."i" > 1 then "i1"."n" end', 2),
        ('case when "i1"."i" > 1 then "i1"."n" else null end', 2),
        ('extract(year from "i1"."d")', 0),
        ('extract(second from "i1"."d")', None),
        ('coalesce("i1"."n", 0)', None),
        ('case when "i1"."i" > 1 then "i1"."n" else "i1"."i" end', None),
        ('"i1"."u"', None),
        ('"i1"."u"::numeric', None),
        ('("i1"."n" / 3)', None),
        ('round("i1"."n", 1)', None),
        ("'NaN'::numeric", None),
    ],
)
def test_i12_an_expression_has_a_scale_if_all_of_its_values_have_it(text: str, scale: int | None) -> None:
    assert scale_of(tree_of(text), SCALES) == scale


@pytest.mark.parametrize(
    ("text", "shown", "scales"),
    [
        ('"i1"."n"', "2", [2]),
        (
            'case when "i1"."u" > 1 then "i1"."n" * "i1"."m" else 0 end',
            'CASE WHEN "i1"."u" > 1 THEN 6 ELSE 0 END',
            [0, 6],
        ),
        (
            '(-(case "i1"."u" when 1 then null when 2 then "i1"."n" else "i1"."m" end))::numeric',
            'CASE "i1"."u" WHEN 1 THEN NULL WHEN 2 THEN 2 ELSE 4 END',
            [2, 4],
        ),
        ('coalesce("i1"."n", 0)', 'CASE WHEN NOT "i1"."n" IS NULL THEN 2 WHEN NOT 0 IS NULL THEN 0 END', [0, 2]),
        (
            '1 - coalesce("i1"."n", 0)',
            'greatest(0, CASE WHEN NOT "i1"."n" IS NULL THEN 2 WHEN NOT 0 IS NULL THEN 0 END)',
            [0, 2],
        ),
        ('"i1"."m" * case when true then "i1"."n" else 1 end', "4 + CASE WHEN TRUE THEN 2 ELSE 0 END", [4, 6]),
        (
            'case when "i1"."i" > 1 then coalesce("i1"."m", 1) end',
            'CASE WHEN "i1"."i" > 1 THEN CASE WHEN NOT "i1"."m" IS NULL THEN 4 WHEN NOT 1 IS NULL THEN 0 END END',
            [0, 4],
        ),
    ],
)
def test_i12_a_case_decides_the_scale_of_a_row(text: str, shown: str, scales: list[int]) -> None:
    found = row_scale(tree_of(text), SCALES)
    assert found is not None
    assert (printed(found[0]), found[1]) == (shown, scales)


@pytest.mark.parametrize(
    "text",
    [
        '"i1"."u"',
        'case when true then "i1"."u" else 0 end',
        'greatest("i1"."n", 0)',
        "case when true then null end",
        "case when true then 'NaN' else 0 end",
        "'NaN'::numeric",
        'coalesce("i1"."n", 0) * "i1"."u"',
    ],
)
def test_i12_a_row_has_another_scale_than_any_case_tells(text: str) -> None:
    assert row_scale(tree_of(text), SCALES) is None
