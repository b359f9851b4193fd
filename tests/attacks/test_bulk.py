"""Bodies of rows that try to hold up everybody else (C3, C6, S3, S5, S9)."""

import hashlib
import io
import socket
from collections.abc import Iterator

import httpx
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from tests.support.bystander import Bystander
from tests.support.service import Service

pytestmark = pytest.mark.e2e


@pytest.fixture
def rows(service: Service) -> Iterator[httpx.Client]:
    """A client of a table with rows to be loaded: POST to it."""
    service.run("CREATE TABLE loaded (id int PRIMARY KEY, s text)")
    url = f"{service.url}/v1/relations/loaded/"
    with httpx.Client(base_url=url, headers=service.headers, timeout=240) as client:
        yield client


def load(rows: httpx.Client, body: bytes, media: str) -> httpx.Response:
    return rows.post("rows", content=body, headers={"Content-Type": media})


def test_s3_a_header_of_a_million_bytes_delays_nobody(rows: httpx.Client, bystander: Bystander) -> None:
    with bystander.unharmed():
        for header in (b'"' + b"\n" * 1_000_000, b'"' * 1_000_000, b"," * 900_000 + b"\n"):
            answer = load(rows, header, "text/csv")
            assert answer.status_code == 422, answer.text


@pytest.mark.soak
def test_s9_bodies_that_unfold_to_gigabytes_are_loaded_or_refused(
    service: Service, rows: httpx.Client, bystander: Bystander
) -> None:
    """64 KiB of text in each of 4,096 rows are 256 MiB, and a few kilobytes of a body."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 4_096, pa.int32()), pa.array(["x" * (64 << 10)]))
    table = pa.table({"id": list(range(4_096)), "s": text})
    body = io.BytesIO()
    pa_parquet.write_table(table, body, compression="zstd")
    huge = pa.table({"id": pa.nulls(160 << 20, pa.int64()), "s": pa.nulls(160 << 20, pa.null())})
    refused = io.BytesIO()
    with pa.ipc.new_stream(refused, huge.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(huge)
    with bystander.unharmed():
        answer = load(rows, refused.getvalue(), "application/vnd.apache.arrow.stream")
        assert (answer.status_code, "too much memory" in answer.text) == (422, True), answer.text
        answer = load(rows, body.getvalue(), "application/vnd.apache.parquet")
        assert answer.json() == {"rows": 4_096}, answer.text
    assert service.value("SELECT sum(length(s)) FROM loaded") == 256 << 20


def test_c3_a_key_that_no_index_takes_is_refused_and_nothing_is_loaded(
    service: Service, rows: httpx.Client, bystander: Bystander
) -> None:
    service.run("CREATE TABLE keyed (k text PRIMARY KEY)")
    long = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(200))
    lines = [b"k", *(str(n).encode() for n in range(1_000)), long.encode()]
    with bystander.unharmed():
        answer = rows.post("../keyed/rows", content=b"\n".join(lines), headers={"Content-Type": "text/csv"})
        assert answer.status_code == 422, answer.text
    assert service.value("SELECT count(*) FROM keyed") == 0


def test_c6_loads_that_bring_nothing_keep_nobody_from_publishing_or_loading(
    service: Service, rows: httpx.Client, bystander: Bystander
) -> None:
    token = "".join(f"{name}: {value}\r\n" for name, value in service.headers.items())
    head = (
        f"POST /v1/relations/loaded/rows HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\n{token}"
        "Content-Type: text/csv\r\nContent-Length: 1000000\r\n\r\nid,s\n1,"
    )
    stalled = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(12)]
    try:
        for one in stalled:
            one.sendall(head.encode())
        with bystander.unharmed():
            service.run("CREATE TABLE mine (id int)")
            for _ in range(8):
                service.run("INSERT INTO mine VALUES (1)")
            answer = load(rows, b"id,s\n1,one\n", "text/csv")
            assert (answer.status_code, answer.json()) == (200, {"rows": 1})
        assert service.value("SELECT count(*) FROM mine") == 8
    finally:
        for one in stalled:
            one.close()
