"""Define what an INSERT, UPDATE or DELETE may call and cast to, as an allow-list (`docs/sql.md` shows the same list).

The list is needed because the worker runs these texts inside an epoch, under a login that can reach more functions than
users should. A function is listed if it computes a value from its arguments, the clock or a random generator. A
function is not listed if it waits, locks, reads the server's files or catalogs, or changes anything. Functions are
named without a schema.
"""

from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.sql.expressions.functions import AGGREGATES
from service.sql.text.tokens import fold
from service.sql.text.tree import Tree, identifier

FUNCTIONS: Final = frozenset(
    """
    abs acos acosd acosh asin asind asinh atan atan2 atan2d atand atanh cbrt ceil ceiling cos cosd cosh cot cotd degrees
    div erf erfc exp factorial floor gamma gcd lcm lgamma ln log log10 min_scale mod pi pow power radians round scale
    sign sin sind sinh sqrt tan tand tanh trim_scale trunc width_bucket

    ascii bit_count bit_length btrim casefold char_length character_length chr concat concat_ws convert convert_from
    convert_to crc32 crc32c decode encode format get_bit get_byte initcap left length lower lpad ltrim md5 normalize
    octet_length quote_ident quote_literal quote_nullable regexp_count regexp_instr regexp_like regexp_match
    regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table regexp_substr repeat replace reverse right
    rpad rtrim set_bit set_byte sha224 sha256 sha384 sha512 split_part starts_with string_to_array string_to_table
    strpos substr substring to_ascii to_bin to_hex to_oct translate trim unistr upper overlay position

    age clock_timestamp current_date current_time current_timestamp date_add date_bin date_part date_subtract date_trunc
    extract isfinite justify_days justify_hours justify_interval localtime localtimestamp make_date make_interval
    make_time make_timestamp make_timestamptz now statement_timestamp timeofday timezone to_char to_date to_number
    to_timestamp transaction_timestamp

    gen_random_uuid random random_normal uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7

    array_append array_cat array_dims array_fill array_length array_lower array_ndims array_position array_positions
    array_prepend array_remove array_replace array_reverse array_sample array_shuffle array_sort array_to_json
    array_to_string array_upper cardinality generate_series generate_subscripts trim_array unnest

    json_array_elements json_array_elements_text json_array_length json_build_array json_build_object json_each
    json_each_text json_extract_path json_extract_path_text json_object json_object_keys json_strip_nulls
    json_to_record json_to_recordset json_typeof jsonb_array_elements jsonb_array_elements_text jsonb_array_length
    jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path jsonb_extract_path_text
    jsonb_insert jsonb_object jsonb_object_keys jsonb_path_exists jsonb_path_match jsonb_path_query
    jsonb_path_query_array jsonb_path_query_first jsonb_pretty jsonb_set jsonb_set_lax jsonb_strip_nulls
    jsonb_to_record jsonb_to_recordset jsonb_typeof row_to_json to_json to_jsonb

    coalesce greatest least nullif num_nonnulls num_nulls hashtext hashtextextended

    cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number
    regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope covar_pop covar_samp bit_xor
    """.split()  # noqa: SIM905 - a list of words reads best as words
) | (AGGREGATES - {"approx_count_distinct"})
SYNTAX: Final = frozenset({"all", "any", "array", "grouping", "row", "some"})
"""Constructs that look like a function call."""
FORMS: Final = (
    exp.Array, exp.And, exp.Or, exp.Xor, exp.Case, exp.If, exp.Cast, exp.Extract, exp.Overlay, exp.StrPosition,
    exp.Substring, exp.Trim, exp.Exists, exp.Unnest, exp.Pow, exp.Sqrt, exp.Cbrt, exp.Abs, exp.RegexpLike,
    exp.RegexpILike, exp.JSONExtract, exp.JSONExtractScalar, exp.JSONBExtract, exp.JSONBExtractScalar,
    exp.JSONBContains, exp.JSONBContainsAllTopKeys, exp.JSONBContainsAnyTopKeys, exp.JSONBDeleteAtPath,
    exp.ArrayContainsAll, exp.ArrayContainedBy, exp.ArrayOverlaps,
    exp.JSONBContainsTopKey, exp.JSONBPathExists, exp.StartsWith, exp.Collate,
)  # fmt: skip
"""sqlglot's function nodes that stand for operators or for special syntax."""
TYPES: Final = frozenset(
    """bigint bit boolean bytea char character cidr date decimal double float inet int integer interval json jsonb
    jsonpath macaddr name numeric real smallint text time timestamp timestamptz timetz uuid varbit varchar""".split()  # noqa: SIM905 - a list of words reads best as words
)
USERS: Final = frozenset(
    "current_catalog current_role current_schema current_user session_user system_user user".split()  # noqa: SIM905 - see above
)
SYSTEM_COLUMNS: Final = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
_LIST: Final = 'docs/sql.md, "What a statement that changes rows may call", lists the functions'


def check_allowed(tree: Tree, node: exp.Expr) -> None:
    """Raise Invalid for a call, a cast or an operator that a statement that changes rows may not contain."""
    match node:
        case exp.Anonymous():
            _check_call(tree, node)
        case exp.Operator():
            _refuse(tree, node, "OPERATOR(..) is not allowed here: write the operator itself")
        case exp.ObjectIdentifier() | exp.PseudoType():
            _refuse(tree, node, f"a cast to {node.sql('postgres').lower()} is not allowed here")
        case exp.DataType():
            _check_type(tree, node)
        case exp.Func() if not isinstance(node, FORMS):
            _refuse(tree, node, f"function {node.sql_name().lower()} is not allowed here: {_LIST}")
        case exp.Column():
            _check_name(tree, node)
        case _:
            pass


def _check_call(tree: Tree, node: exp.Anonymous) -> None:
    name, around = called_name(node), node.parent
    qualified = (isinstance(around, exp.Dot) and around.expression is node) or (
        isinstance(around, exp.Table) and around.args.get("db") is not None
    )
    if qualified:
        assert around is not None
        written = around.sql("postgres", comments=False, normalize_functions=False).partition("(")[0]
        _refuse(tree, node, f"function {written} is not allowed here: functions are named without a schema. {_LIST}")
    if name not in FUNCTIONS and name not in SYNTAX:
        _refuse(tree, node, f"function {name} is not allowed here: {_LIST}")


def called_name(node: exp.Anonymous) -> str:
    """Return the name of the function that is called."""
    if isinstance(node.this, exp.Identifier):
        return node.this.name if node.this.args.get("quoted") else fold(node.this.name)
    return fold(str(node.this))


def _check_type(tree: Tree, node: exp.DataType) -> None:
    shown = node.sql("postgres", comments=False)
    if node.this is exp.DType.ARRAY:
        return  # The element type is a separate node.
    if shown.lower().partition("(")[0].partition(" ")[0] not in TYPES:
        _refuse(tree, node, f"a cast to {shown.lower()} is not allowed here: {_LIST.removesuffix('functions')}types")


def _check_name(tree: Tree, node: exp.Column) -> None:
    name = node.this
    if not isinstance(name, exp.Identifier):
        return
    if identifier(name) in SYSTEM_COLUMNS:
        raise NotFound(f'column "{identifier(name)}" does not exist', kind="column", position=tree.position(node))
    if node.args.get("table") is None and not name.args.get("quoted") and fold(name.name) in USERS:
        _refuse(tree, node, f"{fold(name.name)} is not allowed here: {_LIST}")


def _refuse(tree: Tree, node: exp.Expr, message: str) -> None:
    raise Invalid(message, position=tree.position(node))
