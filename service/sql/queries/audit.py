"""Audit the Spark SQL of a view before it goes to a worker, independently of the code that printed it.

Outside quotes, every word must be one that a view may use and every character one of an expression. Every quoted name
must be a column of the upstream. A failed audit is a fault of tidefill.
"""

import re
from collections.abc import Collection
from typing import Final

from service.sql.expressions.functions import SPARK_WORDS

_SCAN: Final = re.compile(
    r"""(?P<space>\s+) | (?P<string>'(?:[^'\\]++|\\.)*+') | `(?P<name>(?:[^`]++|``)++)`
    | (?P<number>[0-9]+(?:\.[0-9]+)?(?:BD|L)?(?![A-Za-z0-9_.])) | (?P<word>[A-Za-z_][A-Za-z0-9_]*) |
    (?P<symbol>[-+*/%&|^~<>=(),])""",
    re.VERBOSE | re.DOTALL,
)
WORDS: Final = SPARK_WORDS | frozenset(
    """array array_contains between boolean by cardinality coalesce concat concat_ws date date_add date_sub date_trunc
    datediff day dayofweek dayofweek_iso doy extract false float get hex hour ilike in interval least like minute month
    nullif pmod quarter regexp_replace rlike second smallint string timestamp timestamp_micros timestamp_ntz true
    unix_micros week x year yearofweek""".split()  # noqa: SIM905 - a list of words reads best as words
)
"""The words of the table of functions, and those that binders, operators, casts and literals print."""


class UnsafeError(Exception):
    """A text for Spark contains something that no view may use. This is a fault of tidefill; no worker
    may receive it.
    """


def audit(sql: str, names: Collection[str]) -> None:
    """Raise UnsafeError unless `sql` consists of allowed words, columns among `names` and literals."""
    at = 0
    while at < len(sql):
        found = _SCAN.match(sql, at)
        if not found:
            raise UnsafeError(f"{sql!r} at {at}")
        if found["word"] and found["word"].lower() not in WORDS:
            raise UnsafeError(f"{sql!r}: {found['word']}")
        if found["name"] and found["name"].replace("``", "`") not in names:
            raise UnsafeError(f"{sql!r}: {found['name']}")
        at = found.end()
    outside = re.sub(_SCAN.pattern, _outside, sql, flags=re.VERBOSE | re.DOTALL)
    if "${" in sql or re.search(r"--|/\*|\*/", outside):
        raise UnsafeError(repr(sql))


def _outside(found: re.Match[str]) -> str:
    return " " if found["string"] or found["name"] else found[0]
