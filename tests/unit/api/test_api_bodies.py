"""What a body may be: JSON in UTF-8, not too large, without what Postgres's text cannot hold."""

from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from service.api.settings import ApiSettings
from tests.support.http import WORKER_TOKEN, BrokenStores, doors, refused

JSON = {"Content-Type": "application/json"}
SMALL = ApiSettings(worker_token=SecretStr(WORKER_TOKEN), body_size_max=64)


def unreached() -> BrokenStores:
    return BrokenStores(AssertionError("reached"))


@pytest.mark.parametrize(
    ("content", "status", "kind"),
    [
        (b'{"sql": "select 1"', 400, "malformed"),
        (b'{"sql": "\xff"}', 400, "malformed"),
        ('{"sql": "select 1"}'.encode("utf-16"), 400, "malformed"),
        (b'{"sql": "a\x00b"}', 400, "malformed"),
        (b'{"sql": ' + b"[" * 100_000, 400, "malformed"),
        (b'{"sql": ' + b"1" * 5_000 + b"}", 400, "malformed"),
        (rb'{"sql": "a\u0000b"}', 422, "invalid"),
        (rb'{"sql": "x", "session": {"a\u0000": "b"}}', 422, "invalid"),
        (rb'{"sql": "\ud800"}', 422, "invalid"),
        (b'{"sql": 1}', 422, "invalid"),
        (b'{"sql": ""}', 422, "invalid"),
        (b'{"sql": "x", "more": 1}', 422, "invalid"),
        (b'{"sql": "x", "session": {"a": 1.5}}', 422, "invalid"),
        (b'{"sql": "x", "session": {"a": null}}', 422, "invalid"),
        (b'{"sql": "x", "session": {"a": [1]}}', 422, "invalid"),
        (b"[]", 422, "invalid"),
        (b"null", 422, "invalid"),
        (b"", 422, "invalid"),
    ],
)
async def test_a_body_that_cannot_be_meant_is_refused(content: bytes, status: int, kind: str) -> None:
    stores = unreached()
    async with doors(stores) as http:
        refused(await http.post("/v1/sql", content=content, headers=JSON), status, kind)
    assert stores.asked == 0


async def test_a_session_s_numbers_and_booleans_are_what_their_texts_are() -> None:
    given = {"background_ddl": True, "streaming_parallelism": 4, "row_limit": "7"}
    async with doors(unreached()) as http:
        response = await http.post("/v1/sql", json={"sql": "SHOW background_ddl", "session": given})
    assert response.json()["rows"] == [["true"]]
    assert response.json()["session"] == {"background_ddl": "true", "streaming_parallelism": "4", "row_limit": "7"}


async def test_an_escaped_backslash_before_u0000_is_no_nul() -> None:
    stores = BrokenStores(NotImplementedError())
    async with doors(stores) as http:
        response = await http.post(
            "/v1/sql", content=rb'{"sql": "select * from t where a = E\u0027\\u0000\u0027"}', headers=JSON
        )
    # It got as far as the statement itself: what the language says of it is not the door's business.
    assert "\\u0000, which no" not in response.text


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_another_media_type_is_refused(media: str) -> None:
    async with doors(unreached()) as http:
        response = await http.post("/v1/sql", content=b'{"sql": "select 1"}', headers={"Content-Type": media})
        refused(response, 415, "unsupported-media-type")


async def test_a_body_over_the_limit_is_refused_whether_its_length_is_told_or_not() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b" " * 16

    async with doors(unreached(), settings=SMALL) as http:
        refused(await http.post("/v1/sql", content=b" " * 65, headers=JSON), 413, "too-large")
        refused(await http.post("/v1/sql", content=pieces(), headers=JSON), 413, "too-large")
        # One byte less passes the limit, and is then found not to be JSON.
        refused(await http.post("/v1/sql", content=b" " * 64, headers=JSON), 400, "malformed")


async def test_a_length_that_lies_is_counted() -> None:
    async with doors(unreached(), settings=SMALL) as http:
        headers = {**JSON, "Content-Length": "1"}
        refused(await http.post("/v1/sql", content=b" " * 65, headers=headers), 413, "too-large")


async def test_rows_are_not_held_to_the_limit_of_json_bodies() -> None:
    stores = BrokenStores(AssertionError("reached"))
    async with doors(stores, settings=SMALL) as http:
        response = await http.post("/v1/relations/t/rows", content=b"a" * 1000, headers={"Content-Type": "text/csv"})
    # The load began: it asked the catalog.
    assert stores.asked == 1
    assert response.status_code == 500


@pytest.mark.parametrize("media", ["application/json", "text/csv; charset=latin-1", "text/plain", ""])
async def test_rows_come_in_four_forms_only(media: str) -> None:
    async with doors(unreached()) as http:
        response = await http.post("/v1/relations/t/rows", content=b"a\n1\n", headers={"Content-Type": media})
        refused(response, 415, "unsupported-media-type")


@pytest.mark.parametrize("key", ["", "a b", "x" * 201])
async def test_an_idempotency_key_is_a_word_of_bounded_length(key: str) -> None:
    async with doors(unreached()) as http:
        response = await http.post("/v1/recover", headers={"Idempotency-Key": key})
        refused(response, 422, "invalid")


async def test_what_takes_no_body_reads_none() -> None:
    """A megabyte for each of a thousand connections, none of which had a token, was held until its minute was over."""
    read = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b" "

    async with doors(unreached(), settings=SMALL) as http:
        assert (await http.request("GET", "/livez", content=pieces(), headers=JSON)).status_code == 200
    assert read == 0


@pytest.mark.parametrize(
    "mutation",
    [
        b'{"type": "stop", "jobs": [' + b'"a",' * 20_000 + b'"a"]}',
        b'{"type": "start_fragment_backfill", "fragments": [' + b'"a",' * 20_000 + b'"a"]}',
    ],
)
async def test_a_body_of_many_faults_is_answered_with_few(mutation: bytes) -> None:
    """I13: 250,000 faults in a megabyte held the event loop for seconds, and twenty such bodies cost the lease."""
    async with doors(unreached()) as http:
        response = await http.post("/v1/mutations", content=mutation, headers=JSON)
        assert len(response.content) < 4_096
        refused(response, 422, "invalid")
        refused(await http.post("/v1/mutations", content=mutation + b" " * 100_000, headers=JSON), 413, "too-large")


MANY = b",".join(b'"a%d": null' % n for n in range(5_000))
SOME = b",".join(MANY.split(b",", 90)[:90])


@pytest.mark.parametrize(
    ("method", "path", "body", "pointer"),
    [
        ("POST", "/v1/mutations", b'{"type": "throttle", "fragments": {%s}}' % MANY, "/fragments/a0"),
        ("POST", "/v1/sql", b'{"sql": "select 1", "session": {%s}}' % MANY, "/session/a0"),
        ("POST", "/v1/sources", b'{"name": "s", "options": {%s}}' % MANY, "/options/a0"),
        ("PATCH", "/v1/system-parameters", b"{%s}" % SOME, "/a0"),
    ],
)
async def test_an_object_of_many_faults_is_answered_with_the_first(
    method: str, path: str, body: bytes, pointer: str
) -> None:
    """I13: a session of a megabyte took more than two seconds of the event loop, and an answer of 16 MB."""
    async with doors(unreached()) as http:
        response = await http.request(method, path, content=body, headers=JSON)
    refused(response, 422, "invalid")
    assert {fault["pointer"] for fault in response.json()["errors"]} == {pointer}


async def test_a_body_of_many_strange_members_is_answered_with_twenty() -> None:
    async with doors(unreached()) as http:
        response = await http.post("/v1/sql", content=b'{"sql": "x", %s}' % SOME, headers=JSON)
    refused(response, 422, "invalid")
    assert len(response.json()["errors"]) == 20
