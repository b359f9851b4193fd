"""What is known to differ and left out until it is mended: one line for each, which goes with the mend.

A template is named by its text; `Wild` are values, names and literals that many templates meet.
"""

from enum import StrEnum
from typing import Final


class Wild(StrEnum):
    """What may be left out of a world besides templates."""

    NUMBERS = "numbers"
    """numeric columns of other shapes than two, numbers of many digits, casts between them."""
    JSON = "json"
    """JSON numbers with a fraction, objects and arrays, which `->>` prints."""
    NAMES = "names"
    """Columns called like what travels beside them, or alike but for case."""
    SMALLEST = "smallest"
    """The smallest integer, written out or as an index."""
    UNICODE = "unicode"
    """`upper`, `lower`, `ILIKE` beyond ASCII."""
    SPELLINGS = "spellings"
    """Texts that one engine reads as a date, a number or a boolean and the other refuses."""

    FLOATS = "floats"
    """Floats whose sums, products and casts overflow or underflow: an error in Postgres, infinity or 0 in Spark."""
    YEARS = "years"
    """The first and the last year, from which one step leads where no view can follow."""


EXCLUDED: Final[dict[str, str]] = {
    "<r> / <r>": "G5",
    "substring(<x>, '<'i>')": "D9",
    "substring(<x>, 'a')": "D9",
    "substring(<x>, '<'i>', '<'i>')": "D9",
    "substring(<x>, <#>, <#>)": "D4",
    "substring(<x> from <#> for <#>)": "D4",
    "substring(<x> for <#>)": "D4",
    "<n> / <E>": "documented: the scale of a quotient",
    "sqrt(<F>)": "documented: of a numeric in double precision",
    "sqrt(abs(<F>))": "documented: of a numeric in double precision",
    "cbrt(<F>)": "documented: of a numeric in double precision",
    "exp(<F>)": "documented: of a numeric in double precision",
    "ln(<F>)": "documented: of a numeric in double precision",
    "log(<F>)": "documented: of a numeric in double precision",
    "log10(<F>)": "documented: of a numeric in double precision",
    "power(<F>, <#>)": "documented: of a numeric in double precision",
    "<F> ^ <#>": "documented: of a numeric in double precision",
    "pow(<F>, 0.5)": "documented: of a numeric in double precision",
    "<F>::numeric(12,2)": "D7",
    "<F>::numeric(38,10)": "D3, D7",
    "<F>::numeric(5,5)": "D7",
    "<n>::numeric(38,0)": "D3",
    "<n>::text": "the scale of a number that several made",
    "trunc(<d>)": "-0 of a fraction",
    "ceil(<d>)": "-0 of a fraction",
    "<x> like <x>": "documented: a pattern from a column",
    "<x> ilike <x>": "documented: a pattern from a column",
    "(<j> ->> 'k')::numeric(38,10)": "D8",
}
"""Template, and why."""

TAMED: Final = frozenset(Wild)
"""What of `Wild` is left out."""
