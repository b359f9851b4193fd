"""A JSON body is read once, and means what `json.loads` makes of it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.api.json_body import MEMBERS_MAX, SMALL, UnreadableError, loads_long
from tests.support.http import BrokenStores, doors, refused

JSON = {"Content-Type": "application/json"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    max_leaves=9,
)
PIECES = st.sampled_from(
    ["{", "}", '"a"', '"a":', ":", ",", " ", "\n", "1", "1e", "[1,2]", "null", '"', "\\", "x", "NaN"]
)


def outcome(read: Any, text: str) -> object:
    """Return the value, NaN as a text, or where the text is no JSON."""
    try:
        return repr(read(text))
    except json.JSONDecodeError as error:
        return error.msg.partition(" ")[0], error.pos


@given(st.dictionaries(st.text(), VALUES) | VALUES, st.sampled_from([None, 1]))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_a_value_is_read_as_the_library_reads_it(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert outcome(loads_long, text) == outcome(json.loads, text)


@given(
    st.lists(PIECES, max_size=9).map("".join) | st.lists(PIECES, max_size=9).map(lambda some: f"{{{''.join(some)}}}")
)
@settings(max_examples=500, derandomize=True, deadline=None)
def test_what_is_no_json_is_found_where_the_library_finds_it(text: str) -> None:
    long, short = outcome(loads_long, text), outcome(json.loads, text)
    assert (long == short) if isinstance(short, str) else isinstance(long, tuple)


@pytest.mark.parametrize("first", [True, False])
def test_what_is_no_text_is_bounded(*, first: bool) -> None:
    def body(numbers: str) -> str:
        text = f'"sql": "{"x" * SMALL}"'
        return f"{{{text}, {numbers}}}" if first else f"{{{numbers}, {text}}}"

    lists = [f'"{name}": [{"1," * (SMALL // 4 - 10)}1]' for name in "ab"]
    assert loads_long(body(", ".join(lists))) == json.loads(body(", ".join(lists)))
    with pytest.raises(UnreadableError, match=f"at most {SMALL} bytes"):
        loads_long(body(", ".join([*lists, f'"c": [{"[]," * 99}1]'])))
    with pytest.raises(UnreadableError, match=f"more than {MEMBERS_MAX} members"):
        loads_long(body(", ".join(f'"{n}": 1' for n in range(MEMBERS_MAX + 1))))


def test_a_long_number_is_no_shorter_one() -> None:
    """Cut at the bound it would have been a number, and the rest of it something else."""
    with pytest.raises(UnreadableError):
        loads_long(f'{{"sql": "x", "session": {"1" * (SMALL - 300)}.{"1" * 400}}}')


@pytest.mark.parametrize("size", [1, SMALL])
async def test_a_body_is_read_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte was read twice on the event loop."""
    read: list[str] = []
    library, decode = json.loads, json.JSONDecoder.raw_decode

    def counted(text: str) -> Any:
        read.append(text)
        return library(text)

    def decoded(decoder: json.JSONDecoder, s: str, idx: int = 0) -> Any:
        if s.startswith('"--', idx):
            read.append(s)
        return decode(decoder, s, idx)

    monkeypatch.setattr(json, "loads", counted)
    monkeypatch.setattr(json.JSONDecoder, "raw_decode", decoded)
    async with doors(BrokenStores(AssertionError("reached"))) as http:
        content = json.dumps({"sql": f"--{' ' * size}\nSHOW background_ddl"})
        response = await http.post("/v1/sql", content=content, headers=JSON)
    assert read == [content]
    assert response.status_code == 200


async def test_a_statement_s_body_of_many_members_is_refused() -> None:
    """I13: 350,000 lists in a megabyte took a tenth of a second of the event loop, twice."""
    many = b'{"sql": "x", "session": [' + b"[]," * 300_000 + b"[]]}"
    async with doors(BrokenStores(AssertionError("reached"))) as http:
        refused(await http.post("/v1/sql", content=many, headers=JSON), 413, "too-large")
        strange = b'{"sql": "x"' + b"".join(b', "a%d": 1' % n for n in range(MEMBERS_MAX)) + b"}"
        refused(await http.post("/v1/sql", content=strange, headers=JSON), 413, "too-large")
