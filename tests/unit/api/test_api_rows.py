"""Rows as JSON: in pieces, whatever they are, and bounded while clients do not take them (I8, I13)."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api import rows_json
from service.api.rows_json import CHARACTERS, Unsent, pieces
from service.domain.errors import Unavailable
from service.domain.uploading import Spool

WIDE = "a\u0001é\U0001f600" * 4 * CHARACTERS
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


def whole(rows: list[Any]) -> dict[str, Any]:
    return json.loads(b"".join(pieces({"tag": "SELECT"}, rows)))


@given(st.integers(0, 3).flatmap(lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), max_size=8)))
def test_all_rows_are_there(rows: list[list[Any]]) -> None:
    assert whole(rows) == {"tag": "SELECT", "rows": rows}


@pytest.mark.parametrize(
    "rows",
    [
        [[WIDE]],
        [[1, WIDE, None], [2, "x", 3]],
        [list(range(5)) for _ in range(100_000)],
        [[[*range(300_000)], "x"], [[[WIDE], [None]], "y"]],
        [["x" * 1_000, number] for number in range(5_000)],
        [[]] * 10_000,
    ],
    ids=["a wide value", "beside others", "many", "long arrays", "wide together", "no columns"],
)
def test_i13_a_piece_is_small_whatever_the_rows_are(rows: list[Any]) -> None:
    """One value of 60 MB stalled the event loop for 4 s."""
    assert whole(rows)["rows"] == rows
    # A control character takes six bytes.
    assert max(map(len, pieces({}, rows))) <= 8 * CHARACTERS


class Client:
    """A client that takes nothing of a body until it is told to."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.begun = asyncio.Event()
        self.body = bytearray()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            self.begun.set()
            await self.reads.wait()
            self.body += message.get("body", b"")

    async def receive(self) -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        return {}


@pytest.mark.parametrize("value", ["x" * 1_000_000, "\U0001f600" * 250_000], ids=["narrow", "wide"])
async def test_i8_answers_that_are_not_taken_are_bounded_for_each_caller(value: str) -> None:
    """A viewer's 60 answers stayed whole in the service's memory. A text counts with the bytes that it takes there."""
    spool, slow = Spool(bytes_max=10_000_000, what="unsent answers"), Client()
    unsent = Unsent(spool)
    rows, scope = [[value]], {"type": "http", "asgi": {"spec_version": "2.3"}}

    def sent(caller: str, client: Client) -> "asyncio.Task[None]":
        return asyncio.create_task(
            rows_json.answer({"tag": "SELECT"}, rows, unsent, caller)(scope, client.receive, client.send)
        )

    held = [sent("greedy", slow) for _ in range(4)]
    await slow.begun.wait()
    with pytest.raises(Unavailable, match="unsent answers of this caller hold 400"):
        await asyncio.wait_for(sent("greedy", slow), 30)
    other = Client()
    other.reads.set()
    await sent("another", other)
    assert json.loads(other.body)["rows"] == rows
    slow.reads.set()
    await asyncio.gather(*held)
    assert (spool.taken, spool.held) == (0, {})


async def test_i13_one_answer_is_encoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen threads that encode left the event loop a sixteenth of the interpreter."""
    encoding = threading.Barrier(2)

    def meeting(head: Mapping[str, Any], rows: Any) -> Iterator[bytes]:
        with suppress(threading.BrokenBarrierError):
            encoding.wait(0.2)
            met.append(True)
        yield from pieces(head, rows)

    met: list[bool] = []
    monkeypatch.setattr(rows_json, "pieces", meeting)
    unsent, client = Unsent(Spool()), Client()
    client.reads.set()
    rows, scope = [["x" * 1_000_000]], {"type": "http", "asgi": {"spec_version": "2.3"}}
    answers = [rows_json.answer({"tag": "SELECT"}, rows, unsent, "a") for _ in range(2)]
    await asyncio.gather(*(one(scope, client.receive, client.send) for one in answers))
    assert not met
    assert len(client.body) > 2_000_000
