"""Values that engines treat differently, by kind: what a table's rows hold. Each is a Postgres literal, `None` NULL."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal, localcontext
from random import Random
from typing import Final

from tests.differential.excluded import Wild

TYPES: Final = {
    "o": "boolean",
    "s": "smallint",
    "i": "integer",
    "b": "bigint",
    "n": "numeric",
    "r": "real",
    "d": "double precision",
    "x": "text",
    "y": "bytea",
    "D": "date",
    "m": "time",
    "t": "timestamp",
    "z": "timestamptz",
    "u": "uuid",
    "j": "jsonb",
    "v": "interval",
    "I": "integer[]",
    "X": "text[]",
}
"""Kinds of the grammar. An `n` column has a precision and a scale besides."""

SHAPES: Final = ((38, 10), (38, 0), (12, 2), (5, 5), (20, 6), (38, 38), (1, 0), (18, 4))
"""Of numeric columns. The first three are always there."""

_NESTED: Final = '{"k": ' * 30 + "1.10" + "}" * 30
_LONG: Final = "long ž" * 500

PLAIN: Final = {
    "o": ("true", "false"),
    "s": ("0", "1", "-1", "2", "3", "7", "-7"),
    "i": ("0", "1", "-1", "2", "3", "4", "-5", "10"),
    "b": ("0", "1", "-1", "2", "5", "-7", "3000000000"),
    "r": ("0", "1", "1.5", "-0.5", "2.5", "0.1", "-3.5"),
    "d": ("0", "1", "1.5", "2.5", "0.5", "-0.5", "0.1", "-3.5", "4"),
    "x": ("abc", "Abc", "b", " pad ", "a,b,c", "42", "a1b"),
    "y": ("\\x00ff", "\\x616263", "\\x61"),
    "D": ("2024-02-29", "1999-12-27", "2024-12-30", "2023-01-01"),
    "m": ("10:20:30.5", "12:00:00", "23:59:59"),
    "t": ("2024-01-31 13:14:15.5", "2000-03-01 00:00:00", "2024-06-15 12:00:00"),
    "z": ("2024-12-31 23:59:59.999999+00", "1999-01-01 00:00:00+00", "2024-06-15 12:00:00.000001+02"),
    "u": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "12345678-1234-1234-1234-123456789abc"),
    "j": ('{"k": "v", "n": 12, "o": {"p": "q"}, "l": [1, 2], "z": null, "t": true}', '[1, {"k": "w"}]', '{"k": ""}'),
    "v": ("1 day", "02:30:00", "1 year 2 mons 3 days 04:05:06.789"),
    "I": ("{1,2,3}", "{0}", "{5,-1}"),
    "X": ("{a,b}", "{c}", "{abc,Abc}"),
}

NASTY: Final = {
    "o": ("true", "false"),
    "s": ("32767", "-32768", "181", "182"),
    "i": ("2147483647", "-2147483648", "1000000007", "46341", "65536"),
    "b": ("9223372036854775807", "-9223372036854775808", "9007199254740993", "-9007199254740993"),
    "r": ("-0", "NaN", "Infinity", "-Infinity", "3.4028235e38", "1e-45", "16777216", "1e10", "-1e-7"),
    "d": (
        *("-0", "NaN", "Infinity", "-Infinity", "1.7976931348623157e308", "5e-324", "1e-7", "123456789.123456789"),
        *("9007199254740993", "1e15", "1e16", "-1e22", "0.30000000000000004", "1e100", "2147483647.5"),
    ),
    "x": (
        *("", " ", "a\\b'c\"%_\n", "žluťoučký kůň 🐎", "é", "é", "ß", "İ", "${x}", _LONG, "1.5", "-12", "2024-02-29"),
        *("true", "\t", "NULL", "{}", "日本", "1e3", "%", "_", "\\", "a%b", "\x7f", "ﬁ", "0", "\\x61", "  42  "),
        *("NaN", "on", "2024", "1.5d", "ÀÉ", "σΣς", "\U0001f469‍\U0001f467", "infinity", "99999999999", "12:00"),
    ),
    "y": ("\\x", "\\x00", "\\xff", "\\x" + "00ff" * 300, "\\xc5be"),
    "D": ("0001-01-01", "9999-12-31", "1970-01-01", "1582-10-10", "1900-02-28", "1969-12-31", "2000-12-31"),
    "m": ("00:00:00", "24:00:00", "23:59:59.999999", "00:00:00.000001"),
    "t": (
        *("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1970-01-01 00:00:00", "1582-10-10 00:00:00"),
        *("1969-12-31 23:59:59.999999", "2024-03-31 02:30:00", "1883-11-18 12:00:00.1"),
    ),
    "z": (
        *("0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "1969-12-31 23:59:59.999999+00"),
        *("1582-10-10 00:00:00+00", "2024-10-27 01:00:00+00", "1970-01-01 00:00:00+00"),
    ),
    "u": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "j": (
        *(
            "{}",
            "null",
            '"str"',
            "12",
            "[]",
            '{"k": {"k": 1.10}}',
            '{"k": [1.0, 2]}',
            '{"k": 1.50, "n": 100.0}',
            _NESTED,
        ),
        *('{"k": 123456789012345678.5, "n": 0.1000000000000000055511151231257827}', '{"n": 1e30, "k": -0.0}'),
        *('{"k": "a\\"b\\\\c\\né", "n": 12345678901234567890}', '{"": 1, "k": false}', '[null, "x", [3, 4.50]]', "1.0"),
        *('{"k": "\\u017e 🐎", "n": 1.0000000000000000001}', '{"K": 1, "k": null, "n": -0}', '{"a b": 1, "k": " "}'),
    ),
    "v": ("24:00:00", "-1 mons", "00:00:00", "1 mon -1 days", "-178000000 years"),
    "I": ("{}", "{NULL}", "{5,NULL,-1}", "{2147483647,-2147483648}"),
    "X": ("{}", "{NULL}", '{"x y",NULL,""}', '{"a\\"b","c\\\\d","NULL","ž,{}"}'),
}

_NUMBERS: Final = (
    *("0", "1", "-1", "0.5", "-0.5", "2.5", "-2.5", "1.005", "0.1", "3", "10", "100", "99.99", "0.0000000001", "1e-38"),
    *("123456.654321", "0.99999", "-0.00001", "12345678901234567890", "0.45", "1.15", "999999999.9999999999"),
)


@dataclass(frozen=True)
class Values:
    """What values there are. `tamed`: some are left out."""

    tamed: Collection[Wild] = ()

    def drawn(self, random: Random, kind: str, shape: tuple[int, int] | None = None) -> str | None:
        """Draw a value: one in ten is NULL, one in three nasty."""
        if not random.randrange(10):
            return None
        if shape is not None:
            return number(random, *shape)
        return random.choice(self.nasty(kind) if not random.randrange(3) else PLAIN[kind])

    def nasty(self, kind: str) -> Sequence[str]:
        """Return the values of a kind that engines treat differently."""
        return [text for text in NASTY[kind] if not self._left_out(kind, text)] or PLAIN[kind]

    def shapes(self, random: Random) -> Sequence[tuple[int, int]]:
        """Return the shapes of a table's numeric columns."""
        return (*SHAPES[:3], random.choice(SHAPES[3:]), random.choice(SHAPES[3:]))

    def _left_out(self, kind: str, text: str) -> bool:
        return (
            (kind in "Dtz" and Wild.YEARS in self.tamed and text.startswith(("0001", "9999")))
            or (kind in "rd" and Wild.FLOATS in self.tamed and text in EXTREME_FLOATS)
            or (kind == "x" and Wild.UNICODE in self.tamed and not text.isascii())
            or (kind == "x" and Wild.SPELLINGS in self.tamed and text in ODD_SPELLINGS)
        )


ODD_SPELLINGS: Final = ("on", "2024", "1.5d", "  42  ", "NaN", "infinity", "12:00", "0", "\t", "1e3")
EXTREME_FLOATS: Final = (
    *("3.4028235e38", "1e-45", "1.7976931348623157e308", "5e-324", "1e100", "-1e22", "1e16", "1e15", "1e10", "1e-7"),
    *("-1e-7", "9007199254740993"),
)


def number(random: Random, precision: int, scale: int) -> str:
    """Draw a number of at most so many digits, the largest and the smallest included."""
    with localcontext() as context:
        context.prec = 80
        smallest = Decimal(1).scaleb(-scale)
        largest = Decimal(10) ** (precision - scale) - smallest
        if not random.randrange(8):
            return format(random.choice((largest, -largest, smallest, -smallest)), "f")
        drawn = Decimal(random.choice(_NUMBERS)).quantize(smallest, rounding=ROUND_DOWN)
        return format(drawn if abs(drawn) <= largest else smallest * random.randrange(1, 10), "f")


def quoted(text: str | None, kind: str) -> str:
    """Return a literal of a type for a statement that changes rows."""
    return f"cast(null as {kind})" if text is None else "cast('" + text.replace("'", "''") + f"' as {kind})"
