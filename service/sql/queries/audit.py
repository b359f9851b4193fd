"""Audit the Spark SQL of a view before it goes to a worker, independently of the code that printed it.

Outside quotes, every word must be one that a view may use and every character one of an expression. Every quoted name
must be a column of the upstream. A failed audit is a fault of tidefill.
"""

import re
from collections.abc import Collection
from typing import Final

_SCAN: Final = re.compile(
    r"""(?P<space>\s+) | (?P<string>'(?:[^'\\]|\\.)*') | `(?P<name>(?:[^`]|``)+)`
    | (?P<number>[0-9]+(?:\.[0-9]+)?(?:BD|L)?(?![A-Za-z0-9_.])) | (?P<word>[A-Za-z_][A-Za-z0-9_]*) |
    (?P<symbol>[-+*/%&|^~<>=(),])""",
    re.VERBOSE | re.DOTALL,
)
WORDS: Final = frozenset(
    """and array as between bigint binary boolean both by case cast date decimal div double else end false float from
    get ilike in int interval is leading like not null or smallint string then timestamp timestamp_ntz trailing true
    when x year yearofweek quarter month week day doy dayofweek dayofweek_iso hour minute second abs array_contains
    ascii bit_length cardinality ceil char_length coalesce concat concat_ws date_add date_sub date_trunc datediff
    extract floor greatest hex instr isnan least left lower lpad make_date md5 nullif
    octet_length pmod raise_error regexp_replace repeat replace reverse right rint rlike round rpad sign split_part sqrt
    startswith substring timestamp_micros translate trim unix_micros upper""".split()  # noqa: SIM905 - a list of words reads best as words
)
"""All keywords, types, fields and functions that the modules of `service.sql.expressions` print."""


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
