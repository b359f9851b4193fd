"""The one table of functions: what a statement, a view and Spark may call, by Postgres's names.

A row has the name, the kind, and what Spark computes: overloads with Spark text, a binder where more than the types of
the arguments counts, or the form of an aggregate or window function in a part. A row without any of them is the state
store's alone; its `reason` says why if there is more to say. Allow-lists, refusals, the words that Spark texts may have
and the lists in `docs/sql.md` come from here (`python -m tests.support.functions_page` writes them).

A function is listed if it computes a value from its arguments, the clock or a random generator. A function is not
listed if it waits, locks, reads the server's files or catalogs, or changes anything. Spark's text of one gives exactly
Postgres's result (`tests/spark/test_expression_parity.py`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from types import MappingProxyType
from typing import Final

from service.domain.errors import Invalid
from service.protocol.columns import ColumnType
from service.sql.expressions import special
from service.sql.expressions.overloads import (
    ABS,
    CEIL,
    FLOOR,
    LEFT,
    LENGTH,
    MAKE_DATE,
    MD5,
    MOD,
    OCTETS,
    REPEATED,
    REPLACED,
    RIGHT,
    ROUND,
    SIGN,
    SQRT,
    SUBSTRING,
    TRUNC,
    Overload,
    called,
    of_text,
    padded,
    trimmed,
)
from service.sql.expressions.typed import BOOLEAN, DATE, INTEGER, TEXT, Typed


class Kind(Enum):
    """The kind of a function.

    SUMS are aggregates that are computed from sums of contributions, WHOLE those computed from all rows of a group.
    ROWS return several rows. SESSION are names that depend on the session: nothing may use them. SYNTAX is no function.
    """

    SCALAR = auto()
    SUMS = auto()
    WHOLE = auto()
    WINDOW = auto()
    ROWS = auto()
    CLOCK = auto()
    RANDOM = auto()
    SESSION = auto()
    SYNTAX = auto()


class Form(Enum):
    """How Spark computes an aggregate or window function in a part (`service.sql.queries.spark_calls`)."""

    COUNT = auto()
    SUM = auto()
    TRUTH = auto()
    BITS = auto()
    EXTREME = auto()
    TEXTS = auto()
    ARRAY = auto()
    ANY_VALUE = auto()
    RANK = auto()
    SHARE = auto()
    TILE = auto()
    SHIFT = auto()
    VALUE = auto()


@dataclass(frozen=True, slots=True)
class Function:
    """One row. `binder` binds a call of `binds` arguments, or of any number.

    The result of an `ordered` aggregate can depend on the order of rows; that of sums does so with floats. Postgres
    calls a `bare` function without parentheses.
    """

    name: str
    kind: Kind = Kind.SCALAR
    overloads: tuple[Overload, ...] = ()
    binder: special.Binder | None = None
    binds: int | None = None
    form: Form | None = None
    reason: str = ""
    ordered: bool = False
    bare: bool = False
    topic: str = ""

    @property
    def by_spark(self) -> bool:
        """Whether Spark computes some calls."""
        return bool(self.overloads or self.binder or self.form)


def _row(name: str, *overloads: Overload) -> Function:
    return Function(name, overloads=overloads)


def _text(name: str, count: int, spark: str, result: ColumnType = TEXT) -> Function:
    return Function(name, overloads=of_text(count, spark, result))


def _bound(name: str, binder: special.Binder) -> Function:
    return Function(name, binder=binder)


def _aggregate(name: str, kind: Kind, form: Form, *, ordered: bool = False) -> Function:
    return Function(name, kind, form=form, ordered=ordered)


def _window(name: str, form: Form) -> Function:
    return Function(name, Kind.WINDOW, form=form)


def _store(
    names: str, kind: Kind = Kind.SCALAR, reason: str = "", *, ordered: bool = False, bare: bool = False
) -> Iterator[Function]:
    """Yield the rows of functions that only the state store computes."""
    return (Function(name, kind, reason=reason, ordered=ordered, bare=bare) for name in names.split())


_LAST_DIGIT: Final = "Spark's last digit differs from Postgres's"
_SUMS, _WHOLE, _ROWS, _CLOCK, _RANDOM = Kind.SUMS, Kind.WHOLE, Kind.ROWS, Kind.CLOCK, Kind.RANDOM

_TABLE: Final[Mapping[str, Sequence[Function]]] = {
    "numbers": (
        _row("abs", *ABS),
        *_store("acos acosd acosh asin asind asinh atan atan2 atan2d atand atanh"),
        *_store("cbrt exp ln log log10 pow power", reason=_LAST_DIGIT),
        _row("ceil", *CEIL),
        _row("ceiling", *CEIL),
        *_store("cos cosd cosh cot cotd degrees div erf erfc factorial"),
        _row("floor", *FLOOR),
        *_store("gamma gcd lcm lgamma min_scale"),
        _row("mod", *MOD),
        *_store("pi radians"),
        replace(_row("round", *ROUND), binder=special.round_to, binds=2),
        *_store("scale sin sind sinh tan tand tanh trim_scale width_bucket"),
        _row("sign", *SIGN),
        _row("sqrt", SQRT),
        _row("trunc", *TRUNC),
    ),
    "text and bytes": (
        _text("ascii", 1, "ascii({0})", INTEGER),
        *_store("bit_count casefold chr convert convert_from convert_to crc32 crc32c decode encode format"),
        _text("bit_length", 1, "bit_length({0})", INTEGER),
        _row("btrim", *trimmed("BOTH")),
        _row("char_length", LENGTH[0]),
        _row("character_length", LENGTH[0]),
        _bound("concat", special.concat),
        _bound("concat_ws", special.concat_ws),
        *_store("get_bit get_byte initcap normalize overlay position quote_ident quote_literal quote_nullable"),
        _row("left", LEFT),
        _row("length", *LENGTH),
        _text("lower", 1, "lower({0})"),
        _row("lpad", *padded("lpad")),
        _row("ltrim", *trimmed("LEADING")),
        _row("md5", *MD5),
        _row("octet_length", *OCTETS),
        *_store("regexp_count regexp_instr regexp_like regexp_match regexp_replace regexp_split_to_array"),
        *_store("regexp_substr"),
        *_store("regexp_matches regexp_split_to_table string_to_table", _ROWS),
        _row("repeat", Overload((TEXT, INTEGER), TEXT, REPEATED)),
        _text("replace", 3, REPLACED),
        _text("reverse", 1, "reverse({0})"),
        _row("right", RIGHT),
        _row("rpad", *padded("rpad")),
        _row("rtrim", *trimmed("TRAILING")),
        *_store("set_bit set_byte sha224 sha256 sha384 sha512 string_to_array"),
        _row("split_part", Overload((TEXT, TEXT, INTEGER), TEXT, "split_part({0}, {1}, {2})")),
        _text("starts_with", 2, "startswith({0}, {1})", BOOLEAN),
        _text("strpos", 2, "instr({0}, {1})", INTEGER),
        _row("substr", *SUBSTRING),
        _row("substring", *SUBSTRING),
        *_store("to_ascii to_bin to_hex to_oct trim unistr"),
        _text("translate", 3, "translate({0}, {1}, {2})"),
        _text("upper", 1, "upper({0})"),
    ),
    "date and time": (
        *_store("current_date current_time current_timestamp localtime localtimestamp", _CLOCK, bare=True),
        *_store("clock_timestamp now statement_timestamp timeofday transaction_timestamp", _CLOCK),
        *_store("age date_add date_subtract extract isfinite justify_days justify_hours justify_interval"),
        *_store("make_interval make_time make_timestamp make_timestamptz timezone"),
        *_store("to_char to_date to_number to_timestamp"),
        _bound("date_bin", special.date_bin),
        _bound("date_part", special.date_part),
        _bound("date_trunc", special.date_trunc),
        _row("make_date", Overload((INTEGER, INTEGER, INTEGER), DATE, MAKE_DATE)),
    ),
    "random values": (
        *_store("gen_random_uuid random random_normal uuidv4 uuidv7", _RANDOM),
        *_store("uuid_extract_timestamp uuid_extract_version"),
    ),
    "arrays and series": (
        *_store("array_append array_cat array_dims array_fill array_lower array_ndims array_position array_positions"),
        *_store("array_prepend array_remove array_replace array_reverse array_sort array_to_json array_to_string"),
        *_store("array_upper trim_array"),
        _bound("array_length", special.array_length),
        _bound("cardinality", special.cardinality),
        *_store("array_sample array_shuffle", _RANDOM),
        *_store("generate_series generate_subscripts unnest", _ROWS),
    ),
    "JSON": (
        *_store("json_array_length json_build_array json_build_object json_extract_path json_extract_path_text"),
        *_store("json_object json_strip_nulls json_typeof jsonb_array_length jsonb_build_array jsonb_build_object"),
        *_store("jsonb_extract_path jsonb_extract_path_text jsonb_insert jsonb_object jsonb_path_exists"),
        *_store("jsonb_path_match jsonb_path_query_array jsonb_path_query_first jsonb_pretty jsonb_set jsonb_set_lax"),
        *_store("jsonb_strip_nulls jsonb_typeof row_to_json to_json to_jsonb"),
        *_store("json_array_elements json_array_elements_text json_each json_each_text json_object_keys", _ROWS),
        *_store("json_to_record json_to_recordset jsonb_array_elements jsonb_array_elements_text jsonb_each", _ROWS),
        *_store("jsonb_each_text jsonb_object_keys jsonb_path_query jsonb_to_record jsonb_to_recordset", _ROWS),
    ),
    "choice, hashes": (
        _bound("coalesce", special.chosen),
        _bound("greatest", special.chosen),
        _bound("least", special.chosen),
        _bound("nullif", special.nullif),
        *_store("hashtext hashtextextended num_nonnulls num_nulls"),
    ),
    "aggregates": (
        _aggregate("any_value", _WHOLE, Form.ANY_VALUE, ordered=True),
        _aggregate("array_agg", _WHOLE, Form.ARRAY, ordered=True),
        _aggregate("bit_and", _WHOLE, Form.BITS),
        _aggregate("bit_or", _WHOLE, Form.BITS),
        _aggregate("bool_and", _SUMS, Form.TRUTH),
        _aggregate("bool_or", _SUMS, Form.TRUTH),
        _aggregate("count", _SUMS, Form.COUNT),
        _aggregate("every", _SUMS, Form.TRUTH),
        _aggregate("max", _WHOLE, Form.EXTREME),
        _aggregate("min", _WHOLE, Form.EXTREME),
        _aggregate("string_agg", _WHOLE, Form.TEXTS, ordered=True),
        _aggregate("sum", _SUMS, Form.SUM, ordered=True),
        *_store("avg stddev stddev_pop stddev_samp var_pop var_samp variance", _SUMS, ordered=True),
        *_store("bit_xor mode percentile_cont percentile_disc regr_count", _WHOLE),
        *_store("corr covar_pop covar_samp json_agg json_object_agg jsonb_agg jsonb_object_agg", _WHOLE, ordered=True),
        *_store("regr_avgx regr_avgy regr_intercept regr_r2 regr_slope", _WHOLE, ordered=True),
        *_store("regr_sxx regr_sxy regr_syy", _WHOLE, ordered=True),
    ),
    "windows": (
        _window("cume_dist", Form.SHARE),
        _window("dense_rank", Form.RANK),
        _window("first_value", Form.VALUE),
        _window("lag", Form.SHIFT),
        _window("last_value", Form.VALUE),
        _window("lead", Form.SHIFT),
        _window("nth_value", Form.VALUE),
        _window("ntile", Form.TILE),
        _window("percent_rank", Form.SHARE),
        _window("rank", Form.RANK),
        _window("row_number", Form.RANK),
    ),
    "": (
        *_store("all any array grouping row some", Kind.SYNTAX),
        *_store("current_catalog current_role current_schema current_user session_user", Kind.SESSION, bare=True),
        *_store("system_user user", Kind.SESSION, bare=True),
    ),
}  # fmt: skip
FUNCTIONS: Final[Mapping[str, Function]] = MappingProxyType(
    {row.name: replace(row, topic=topic) for topic, rows in _TABLE.items() for row in rows}
)


def names(*kinds: Kind) -> frozenset[str]:
    """Return the names of the functions of some kinds."""
    return frozenset(name for name, row in FUNCTIONS.items() if row.kind in kinds)


AGGREGATES: Final = names(Kind.SUMS, Kind.WHOLE)
CALLABLE: Final = FUNCTIONS.keys() - names(Kind.SESSION)
"""Functions that a statement that changes rows may call, and syntax that looks like a call."""
SPARK_WORDS: Final = frozenset(
    word.lower()
    for row in FUNCTIONS.values()
    for one in row.overloads
    for word in re.findall(r"(?<!\w)[A-Za-z_]\w*", re.sub(r"'[^']*'", "", one.spark))
)
"""All words of the table's Spark texts."""


def binder(name: str, count: int) -> special.Binder:
    """Return what binds a function's call of so many arguments for Spark. Raises Invalid."""
    row = FUNCTIONS.get(name)
    if row is not None and row.binder is not None and row.binds in (None, count):
        return row.binder
    if row is not None and row.overloads:
        return partial(called, row.overloads)
    if row is not None and row.reason:
        raise Invalid(f"{name}: {row.reason}")
    kind = "aggregate function" if name in AGGREGATES else "function"
    raise Invalid(f"{kind} {name} is not supported in a view")


def call(name: str, arguments: Sequence[Typed]) -> Typed:
    """Return a function's call in Spark SQL. Raises Invalid."""
    return binder(name, len(arguments))(name, arguments)


def form_of(name: str) -> Form | None:
    """Return how Spark computes an aggregate or window function in a part. None: it does not."""
    return FUNCTIONS[name].form if name in FUNCTIONS else None
