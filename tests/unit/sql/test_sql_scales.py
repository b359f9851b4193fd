"""The digits behind the point that all values of an expression have (I12)."""

import pytest

from service.sql.queries.scales import scale_of

SCALES = {'"i1"."n"': 2, '"i1"."i"': 0, '"i1"."m"': 4}


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
    assert scale_of(text, SCALES) == scale
