"""A value's Postgres text as JSON: numbers where exact, else strings."""

import json
import tracemalloc

import pytest
from psycopg import postgres

from service.serving.json_values import converter

OIDS = {info.name: info for info in postgres.types}


def _value(kind: str, text: str) -> object:
    info = OIDS[kind.removesuffix("[]")]
    return converter(info.array_oid if kind.endswith("[]") else info.oid)(text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("bool", "t", True),
        ("bool", "f", False),
        ("int2", "-32768", -32768),
        ("int8", "9007199254740992", 9007199254740992),
        ("int8", "-9007199254740993", "-9007199254740993"),
        ("float8", "0.1", 0.1),
        ("float8", "1e+300", 1e300),
        ("float8", "NaN", "NaN"),
        ("float4", "-Infinity", "-Infinity"),
        ("numeric", "1.50", "1.50"),
        ("text", "null", "null"),
        ("bytea", "\\x00ff", "\\x00ff"),
        ("jsonb", '{"a": 1}', '{"a": 1}'),
        ("timestamptz", "2020-01-01 00:00:00+00", "2020-01-01 00:00:00+00"),
        ("int4[]", "{}", []),
        ("int4[]", "{1,NULL,3}", [1, None, 3]),
        ("int4[]", "{{1,2},{3,4}}", [[1, 2], [3, 4]]),
        ("int8[]", "[0:1]={9007199254740993,2}", ["9007199254740993", 2]),
        ("float8[]", "{1.5,NaN}", [1.5, "NaN"]),
        ("bool[]", "{t,f}", [True, False]),
        ("text[]", r'{plain,"with \"quotes\"","back\\slash","NULL",NULL,"","a,b","{}","new' + "\n" + 'line"}',
         ["plain", 'with "quotes"', "back\\slash", "NULL", None, "", "a,b", "{}", "new\nline"]),
        ("numeric[]", "{1.50,NaN}", ["1.50", "NaN"]),
        ("box[]", "{(1,1),(0,0);(2,2),(1,1)}", "{(1,1),(0,0);(2,2),(1,1)}"),
    ],
)  # fmt: skip
def test_values(kind: str, text: str, value: object) -> None:
    converted = _value(kind, text)
    assert converted == value
    assert type(converted) is type(value)
    json.dumps(converted, allow_nan=False)


def test_a_type_nobody_knows_is_its_text() -> None:
    assert converter(4_000_000_000)("(1,2)") == "(1,2)"


def test_i13_a_long_element_takes_little_more_memory_than_its_text() -> None:
    """One of 62 MB took the service 8.7 GB: a pattern kept each of its characters."""
    text = '{"' + 'a \\" ' * 200_000 + '"}'
    tracemalloc.start()
    try:
        found = _value("text[]", text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == ['a " ' * 200_000]
    assert peak < 20 * len(text)
