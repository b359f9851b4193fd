"""What is known to differ and left out until it is mended: one line for each, which goes with the mend.

A template is named by its text; `Wild` are values, names and literals that many templates meet.
"""

from enum import StrEnum
from typing import Final


class Wild(StrEnum):
    """What may be left out of a world besides templates."""

    UNICODE = "unicode"
    """Documented: `upper`, `lower`, `ILIKE` beyond ASCII."""
    SPELLINGS = "spellings"
    """Documented: texts that one engine reads as a date, a number or a boolean and the other refuses."""
    FLOATS = "floats"
    """Floats whose sums, products and casts overflow or underflow: an error in Postgres, infinity or 0 in Spark."""
    YEARS = "years"
    """Documented: the first and the last year, from which one step leads where no view can follow."""


EXCLUDED: Final[dict[str, str]] = {
    "<n> / <E>": "documented: refused, Postgres chooses the digits by the values",
    **dict.fromkeys(
        (*("sqrt(<n>)", "exp(<n>)", "ln(<n>)", "log(<n>)", "power(<n>, <#>)", "<n> ^ <#>"),),
        "documented: of a numeric computed in double precision",
    ),
    "<d>::numeric(38,10)": "documented: Postgres rounds to 15 digits first",
    "<r>::numeric(12,2)": "documented: Postgres rounds to 6 digits first",
    "<n>::text": "the scale of a number that several made: a column of a view has one for all rows",
}
"""Template, and why."""

FAILURES: Final[dict[str, str]] = {
    "NUMERIC_VALUE_OUT_OF_RANGE": "documented: a numeric that needs more than 38 digits is an error of the view",
    "a value is out of range: Division impossible": "documented: of a remainder whose quotient needs them",
    "must be finite and in the years 1 to 9999": "documented: other dates are not kept",
    'invalid input syntax for type date: "-': "documented: a date before year 1 is not kept",
    "LIKE pattern must not end with": "documented: Postgres refuses a pattern of a row only where it gets so far",
    "NaN as numeric is not supported": "documented: a float that is NaN or infinite is no numeric",
}
"""What a view may fail with although Postgres answers, and why."""

TAMED: Final = frozenset(Wild)
"""What of `Wild` is left out."""
