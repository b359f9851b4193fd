"""A bulk load is refused as a whole, by row or column, before anything of it is applied."""

import asyncio
import gzip
import hashlib
import io
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from typing import Any

import httpx
import pyarrow as pa
import pytest

from service.columnar.process import ColumnarProcesses
from service.domain.errors import Invalid, TimedOut, Unavailable
from service.domain.roles import Role
from service.domain.uploading import Spool
from service.meta_store.stores import PostgresStores
from service.operations.rows import bulk, dml
from service.operations.rows.bulk import Form
from service.operations.upkeep import maintenance
from service.operations.world import pieces_turns
from service.ports.audit import Asker
from service.protocol.columns import Column, ColumnType
from service.protocol.dml import StatementResult, staging_table
from service.protocol.ids import DATABASE_GRAPH, Epoch, StatementId
from service.serving.connections import open_pool
from service.serving.staging import PostgresStaging
from tests.support.http import StillClock, changed, doors, refused, world_of
from tests.support.meta_store import NOW, add_created, barrier, inject, new_table, new_view, relation
from tests.support.state_store import Store, filled, prepared_store
from tests.support.waiting import until

pytestmark = pytest.mark.postgres

CSV = {"Content-Type": Form.CSV}
NDJSON = {"Content-Type": Form.NDJSON}
ARROW = {"Content-Type": Form.ARROW}
HEAD = b"id,name,price,tags\n"


@pytest.fixture(autouse=True)
async def table(stores: PostgresStores) -> None:
    """A readable table `t` (see `tests.support.meta_store.relation`) and a view `m` over it."""
    async with stores.begin() as tx:
        job = await add_created(tx, new_table("t"))
        await add_created(tx, new_view("m", job.relation))
        await tx.jobs.add(new_table("young"), now=NOW)
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(0), now=NOW)


async def nothing_waits(stores: PostgresStores) -> bool:
    async with stores.begin() as tx:
        return not await tx.statements.waiting(limit=10)


REFUSED = [
    ("t", b"", 422, "the body is empty"),
    ("t", b"id,name,price,tags,zip,zap\n", 422, 'columns unknown: "zip", "zap"'),
    ("t", b"id,name\n", 422, 'columns missing: "price", "tags"'),
    ("t", b"id,name,id,tags\n", 422, 'columns given twice: "id"'),
    ("t", b"id,name,price,tags,_hidden\n", 422, 'columns unknown: "_hidden"'),
    ("t?columns=id,nope", b"id\n", 422, 'columns unknown: "nope"'),
    ("t?columns=name", b"name\n", 422, 'columns missing: "id"'),
    ("t?columns=id,name,id", b"id,name\n", 422, 'columns given twice: "id"'),
    ("t?columns=id,name", b"id\n", 422, 'columns missing: "name"'),
    ("t", b"id,name\n", 422, "?columns=a,b"),
    ("t", HEAD + b"1,a,1.5,\n2,b,x,\n", 422, 'row 2 (line 3), column "price"'),
    ("t", HEAD + b"1,a,1.5,\n2,b\n", 422, "row 2"),
    ("t", HEAD + b'1,"a\nb\nc",1.5,\n,b,1,\n', 422, "row 2 (line 5)"),
    ("t", HEAD + b"1,\xff,1.5,\n", 422, "row 1"),
    ("t", HEAD + b"99999999999999999999,a,1,\n", 422, 'row 1 (line 2), column "id"'),
    ("m", HEAD, 409, "only tables take rows"),
    ("young", HEAD, 409, "takes no rows"),
    ("nope", HEAD, 404, "does not exist"),
]


async def test_a_load_that_cannot_be_meant_is_refused(
    loading: httpx.AsyncClient, stores: PostgresStores, subtests: pytest.Subtests
) -> None:
    for path, body, status, said in REFUSED:
        name, _, query = path.partition("?")
        with subtests.test(said):
            response = await loading.post(f"/v1/relations/{name}/rows?{query}", content=body, headers=CSV)
            assert response.status_code == status, response.text
            assert said in response.json()["detail"]
            assert await nothing_waits(stores)


async def test_u10_a_packed_body_is_unpacked(loading: httpx.AsyncClient) -> None:
    packed = {**CSV, "Content-Encoding": "gzip"}
    rows = "/v1/relations/t/rows"
    assert (await loading.post(rows, content=gzip.compress(HEAD), headers=packed)).json() == {"rows": 0}
    bad = await loading.post(rows, content=gzip.compress(HEAD + b"1,a,x,\n"), headers=packed)
    assert 'row 1 (line 2), column "price"' in bad.json()["detail"]
    refused(await loading.post(rows, content=gzip.compress(HEAD), headers=CSV), 422, "invalid")
    other = await loading.post(rows, content=HEAD, headers={**CSV, "Content-Encoding": "br"})
    assert (other.status_code, "Content-Encoding: gzip" in other.json()["detail"]) == (415, True)
    sql = await loading.post("/v1/sql", content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    assert (sql.status_code, "sent as it is" in sql.json()["detail"]) == (415, True)


async def test_u10_the_root_says_where_to_go_on(loading: httpx.AsyncClient) -> None:
    answer = await loading.get("/")
    assert (answer.status_code, "/docs" in answer.text) == (200, True)


async def test_a_load_of_no_rows_changes_nothing(loading: httpx.AsyncClient, stores: PostgresStores) -> None:
    for headers, body in ((CSV, HEAD), (NDJSON, b"\n"), (ARROW, arrow(id=[], name=[], price=[], tags=[]))):
        response = await loading.post("/v1/relations/t/rows", content=body, headers=headers)
        assert (response.status_code, response.json()) == (200, {"rows": 0})
    assert await nothing_waits(stores)


async def test_the_same_key_with_other_rows_is_refused(loading: httpx.AsyncClient) -> None:
    headers = {**CSV, "Idempotency-Key": "k"}
    first = await loading.post("/v1/relations/t/rows", content=HEAD, headers=headers)
    again = await loading.post("/v1/relations/t/rows", content=HEAD, headers=headers)
    assert first.json() == again.json() == {"rows": 0}
    other = await loading.post("/v1/relations/t/rows", content=HEAD + b"1,a,1,\n", headers=headers)
    refused(other, 409, "conflict")


async def test_a_good_load_waits_for_an_epoch(loading: httpx.AsyncClient, stores: PostgresStores) -> None:
    """No worker runs, so that the load stays queued: staged, and carried by the next barrier."""
    response = await loading.post("/v1/relations/t/rows", content=HEAD + b"1,a,1.5,{1}\n2,,,\n", headers=CSV)
    refused(response, 503, "unavailable")
    async with stores.begin() as tx:
        (waiting,) = await tx.statements.waiting(limit=10)
    assert waiting.staged_rows == 2


async def test_a_repetition_waits_for_the_load_that_was_accepted_before(
    loading: httpx.AsyncClient, stores: PostgresStores
) -> None:
    """I3: whatever became of the first call, its key leads to the statement that it left behind."""
    headers = {**CSV, "Idempotency-Key": "k"}
    body = HEAD + b"1,a,1.5,\n"
    refused(await loading.post("/v1/relations/t/rows", content=body, headers=headers), 503, "unavailable")
    refused(await loading.post("/v1/relations/t/rows", content=body, headers=headers), 503, "unavailable")
    async with stores.begin() as tx:
        (waiting,) = await tx.statements.waiting(limit=10)
    await inject(stores, barrier(1, 0, statements=(waiting.statement,)))
    async with stores.begin() as tx:
        await tx.statements.finish([StatementResult(id=waiting.id, affected=1)], epoch=Epoch(0), now=NOW)
    response = await loading.post("/v1/relations/t/rows", content=body, headers=headers)
    assert (response.status_code, response.json()) == (200, {"rows": 1})
    assert await nothing_waits(stores)


async def test_what_was_staged_and_never_accepted_is_removed(
    loading: httpx.AsyncClient, stores: PostgresStores, staging: PostgresStaging
) -> None:
    """I9: what a service that died between staging and accepting left; not what is accepted or being filled."""

    async def rows() -> AsyncIterator[bytes]:
        yield b"1,a,1.5,\n"

    refused(await loading.post("/v1/relations/t/rows", content=HEAD + b"1,a,1.5,\n", headers=CSV), 503, "unavailable")
    async with stores.begin() as tx:
        (accepted,) = await tx.statements.waiting(limit=10)
        term = await tx.leases.gain("leader", lease=timedelta(minutes=1))
    assert term is not None
    world = world_of(stores, staging=staging)
    columns = relation("t").visible
    await filled(staging.from_csv(StatementId(1_000), columns, rows()))
    async with staging.from_csv(StatementId(1_001), columns, rows()):
        assert await maintenance.unstage(world, term=term) == 1
        assert await staging.unheld() == [accepted.id]
    assert await maintenance.unstage(world, term=term) == 1


async def test_s9_a_query_whose_caller_has_left_is_not_inserted(
    stores: PostgresStores, staging: PostgresStaging
) -> None:
    """It went on for ten minutes, and held one of the few turns."""
    world, query = world_of(stores, staging=staging), "select generate_series(1, 100000000000)"
    columns = relation("t").visible[:1]

    async def gone() -> None:
        await asyncio.to_thread(until, lambda: world.loading.spool.taken, what="rows are being staged")

    with pytest.raises(Unavailable, match="the caller has left"):
        await dml.insert_query(world, relation("t"), columns, query, asked_by=Asker("one", Role.OPERATOR), gone=gone)
    assert (world.loading.spool.taken, await nothing_waits(stores)) == (0, True)
    assert not await staging.unheld()


VALUES = [
    ("boolean", [True, None]),
    ("smallint", [-32768, None]),
    ("bigint", [2**63 - 1, 0]),
    ("double precision", [0.1, 1e300]),
    ("numeric(38,10)", ["12345678901234567890.0123456789", "0"]),
    ("text", ['a,"b"\n', ""]),
    ("bytea", ["\\x00ff", None]),
    ("date", ["2024-02-29", "0001-01-01"]),
    ("time", ["24:00:00", None]),
    ("timestamptz", ["2024-02-29 12:00:00.123456+00", None]),
    ("uuid", ["00010203-0405-0607-0809-0a0b0c0d0e0f", None]),
    ("jsonb", ['{"a": [1.10, null]}', None]),
    ("interval", ["1 mon 2 days", None]),
    ("integer[]", ["{1,NULL,3}", "{}"]),
]


COLUMNS = {"n": ("bigint", [0, 1]), **{f"c{number}": one for number, one in enumerate(VALUES)}}
SHOWN = ", ".join(f"{name}::text" for name in COLUMNS)


async def test_the_forms_stage_the_same_values(staging: PostgresStaging, database_url: str) -> None:
    """What Postgres's own input reads from the texts is what comes back, in every form. Each type is a column."""
    columns = tuple(Column(name=name, type=ColumnType.parse(kind)) for name, (kind, _) in COLUMNS.items())
    texts = {name: [text_of(value) for value in values] for name, (_, values) in COLUMNS.items()}
    given = [
        [
            f"{'null' if text is None else quoted(text)}::{COLUMNS[name][0]}"
            for name, text in zip(texts, row, strict=True)
        ]
        for row in zip(*texts.values(), strict=True)
    ]
    rows = ", ".join(f"({', '.join(row)})" for row in given)
    async with prepared_store(database_url) as store:
        seen = [
            await staged(staging, store, form, body, columns, StatementId(number))
            for number, (form, body) in enumerate(bodies(texts), start=1)
        ]
        wanted = await store.rows(f"select {SHOWN} from (values {rows}) as v({', '.join(COLUMNS)}) order by n")
    assert len(wanted) == 2
    assert all(found == wanted for found in seen), (seen, wanted)


def text_of(value: Any) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def bodies(texts: Mapping[str, Sequence[str | None]]) -> list[tuple[Form, bytes]]:
    rows = list(zip(*texts.values(), strict=True))
    csv = "".join(
        ",".join("" if text is None else '"' + text.replace('"', '""') + '"' for text in row) + "\n"
        for row in [tuple(texts), *rows]
    )
    lines = "".join(
        "{"
        + ", ".join(
            f'"{name}": {json_of(kind, values[number], texts[name][number])}'
            for name, (kind, values) in COLUMNS.items()
        )
        + "}\n"
        for number in range(len(rows))
    )
    return [
        (Form.CSV, csv.encode()),
        (Form.NDJSON, lines.encode()),
        (Form.ARROW, arrow(**{name: list(of_column) for name, of_column in texts.items()})),
    ]


def json_of(kind: str, value: Any, text: str | None) -> str:
    if kind == "jsonb" or text is None:
        return text or "null"
    if kind == "integer[]":
        return text.replace("{", "[").replace("}", "]").replace("NULL", "null")
    return text if isinstance(value, int | float | bool) else json.dumps(text)


async def staged(
    staging: PostgresStaging, store: Store, form: Form, body: bytes, columns: tuple[Column, ...], number: StatementId
) -> list[tuple[object, ...]]:
    async def stream() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 10):
            yield body[start : start + 10]

    async with (
        received(Spool(), stream(), form, caller="one") as whole,
        bulk.opened(ColumnarProcesses(), whole, columns) as (given, chunks),
    ):
        assert await filled(staging.from_csv(number, given, chunks)) == 2
    return await store.rows(f"select {SHOWN} from {staging_table(number)} order by n")


def arrow(**columns: list[Any]) -> bytes:
    sink = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def test_c3_a_key_that_the_table_would_refuse_is_refused_before_anything_is_applied(
    staging: PostgresStaging,
) -> None:
    """I13: it was found by the index of the table, when earlier slices had been applied and published."""
    columns = (Column(name="k", type=ColumnType.parse("text"), nullable=False),)
    long = "".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(125))

    async def rows(last: str) -> AsyncIterator[bytes]:
        yield f"short\n{'x' * 3000}\n{last}\n".encode()

    # A long key that the index compresses is taken.
    assert await filled(staging.from_csv(StatementId(1), columns, rows("other"), key=("k",))) == 3
    with pytest.raises(Invalid, match="a key is too long"):
        await filled(staging.from_csv(StatementId(2), columns, rows(long), key=("k",)))


async def test_c6_a_load_waits_for_a_place_of_its_own_and_takes_nobody_elses(
    database_url: str, staging: PostgresStaging
) -> None:
    """I13: the connections of the leader are no loader's."""
    del staging  # the store is prepared
    begun, stalled = asyncio.Event(), asyncio.Event()

    async def rows() -> AsyncIterator[bytes]:
        begun.set()
        yield b"1\n"
        await stalled.wait()

    async with open_pool(database_url, name="loads", size=1) as loads, open_pool(database_url, name="owner") as owner:
        loads.timeout = 0.2
        places = PostgresStaging(loads, owner, owner)
        columns = (Column(name="k", type=ColumnType.parse("text")),)
        first = asyncio.ensure_future(filled(places.from_csv(StatementId(1), columns, rows())))
        await begun.wait()
        with pytest.raises(Unavailable, match="TIDEFILL_LOADS_MAX"):
            await filled(places.from_csv(StatementId(2), columns, rows()))
        assert await places.unheld() == []
        stalled.set()
        assert await first == 1


async def test_s5_a_sender_holds_no_place_while_its_rows_arrive(
    database_url: str, stores: PostgresStores, staging: PostgresStaging
) -> None:
    """I13: four senders that trickled kept all other loads waiting for an hour."""
    del staging  # the store is prepared
    begun = asyncio.Event()

    async def rows() -> AsyncIterator[bytes]:
        yield HEAD
        yield b"1,a"
        begun.set()
        await asyncio.Event().wait()

    async with open_pool(database_url, name="loads", size=1) as loads, open_pool(database_url, name="owner") as owner:
        loads.timeout = 0.2
        async with doors(stores, staging=PostgresStaging(loads, owner, owner)) as loading:
            slow = asyncio.ensure_future(loading.post("/v1/relations/t/rows", content=rows(), headers=CSV))
            await begun.wait()
            response = await loading.post("/v1/relations/t/rows", content=HEAD, headers=CSV)
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
    assert (response.status_code, response.json()) == (200, {"rows": 0})


async def test_s5_a_body_that_brings_nothing_is_given_up(stores: PostgresStores) -> None:
    world = changed(world_of(stores), idle=timedelta(milliseconds=50))

    async def rows() -> AsyncIterator[bytes]:
        yield b"1\n"
        await asyncio.Event().wait()

    with pytest.raises(TimedOut, match="TIDEFILL_LOAD_IDLE_SECONDS"):
        assert [chunk async for chunk in bulk.paced(world, rows())] == [b"1\n"]


@pytest.mark.parametrize(("size", "given_up"), [(1_000, True), (1_100, False)])
async def test_s5_a_body_that_trickles_is_given_up(stores: PostgresStores, size: int, *, given_up: bool) -> None:
    """Each second brings less than 1,024 bytes, after a fast beginning that earns it nothing; or a little more."""
    clock = StillClock()
    world = changed(world_of(stores, clock=clock), idle=timedelta(seconds=30), rate_min=1_024)

    async def rows() -> AsyncIterator[bytes]:
        yield b"x" * (1 << 20)
        for _ in range(2_000):
            clock.seconds += 1
            yield b"x" * size

    if not given_up:
        assert len([chunk async for chunk in bulk.paced(world, rows())]) == 2_001
        return
    with pytest.raises(TimedOut, match="TIDEFILL_LOAD_RATE_MIN"):
        _ = [chunk async for chunk in bulk.paced(world, rows())]


async def test_s5_time_in_which_the_service_asks_for_nothing_is_not_the_senders(stores: PostgresStores) -> None:
    clock = StillClock()
    world = world_of(stores, clock=clock)

    async def rows() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"1\n"

    async for _ in bulk.paced(world, rows()):
        clock.seconds += 60


def received(
    spool: Spool, stream: AsyncIterator[bytes], form: Form, *, caller: str
) -> AbstractAsyncContextManager[bulk.Body]:
    return bulk.received(spool, stream, form, pieces=pieces_turns(1), caller=caller)


async def of_bytes(size: int) -> AsyncIterator[bytes]:
    for _ in range(size):
        yield b"x"


async def test_s9_files_of_bodies_are_bounded_together() -> None:
    spool = Spool(bytes_max=100)
    with pytest.raises(Invalid, match="TIDEFILL_LOAD_FILES_BYTES_MAX"):
        async with received(spool, of_bytes(51), Form.PARQUET, caller="one"):
            pass
    assert (spool.taken, spool.held) == (0, {})
    async with received(spool, of_bytes(30), Form.ARROW, caller="one"):
        with pytest.raises(Unavailable, match="TIDEFILL_LOAD_FILES_BYTES_MAX"):
            async with received(spool, of_bytes(21), Form.CSV, caller="one"):
                pass
        assert (spool.taken, spool.held) == (30, {"one": 30})
    async with received(spool, of_bytes(50), Form.PARQUET, caller="one"):
        assert spool.taken == 50
    assert (spool.taken, spool.held) == (0, {})


async def test_s9_rows_are_counted_by_what_they_take_in_the_staging_table(
    stores: PostgresStores, staging: PostgresStaging
) -> None:
    """450 MB of line breaks were 5.5 GB there."""
    spool = Spool(bytes_max=600)
    async with doors(stores, staging=staging, spool=spool) as loading:
        body = HEAD + b"1,,,\n" * 10
        refusal = await loading.post("/v1/relations/t/rows", content=body, headers=CSV)
        # 50 bytes and 10 rows, each with a bigint, less the body.
        assert (refusal.status_code, "more than half of the 600 bytes" in refusal.json()["detail"]) == (422, True)
        assert (spool.taken, await nothing_waits(stores), await staging.unheld()) == (0, True, [])


@pytest.mark.parametrize(
    ("kinds", "size"),
    [
        (["text"], 36),
        (["bigint", "integer", "boolean", "text"], 36 + 6 + 2),
        (["interval"] * 257, 8192),
        (["uuid"] * 600, 36 + 600 * 14),
    ],
)
def test_s9_a_row_of_many_numbers_is_larger_than_its_text(kinds: Sequence[str], size: int) -> None:
    """A body of 257 intervals a row, "0" each, took 15 times what was counted."""
    columns = [Column(name=f"c{at}", type=ColumnType.parse(kind)) for at, kind in enumerate(kinds)]
    assert bulk._row_bytes(columns) == size  # pyright: ignore[reportPrivateUsage] - a body of that many is 20 MB


async def test_a10_bodies_of_one_caller_leave_space_for_those_of_others() -> None:
    """A body that comes slowly, after it was large, would hold the files of all others up for an hour (I13)."""
    spool = Spool(bytes_max=100)
    async with AsyncExitStack() as held:
        for _ in range(5):
            await held.enter_async_context(received(spool, of_bytes(10), Form.CSV, caller="greedy"))
        with pytest.raises(Unavailable, match="of this caller hold 50 bytes, and those of others 0"):
            await held.enter_async_context(received(spool, of_bytes(1), Form.CSV, caller="greedy"))
        for caller, size in (("second", 25), ("third", 12)):
            await held.enter_async_context(received(spool, of_bytes(size), Form.CSV, caller=caller))
        with pytest.raises(Unavailable, match="of this caller hold 25 bytes, and those of others 62"):
            await held.enter_async_context(received(spool, of_bytes(1), Form.CSV, caller="second"))
    assert (spool.taken, spool.held) == (0, {})
