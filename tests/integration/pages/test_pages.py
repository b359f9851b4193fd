"""What the pages show of a meta store in a known state, and what their forms do."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from service.domain.errors import Unavailable
from service.domain.job import JobEvent, JobState
from service.meta_store.stores import PostgresStores
from service.pages.table import PAGES
from service.protocol.columns import ColumnType
from service.protocol.connector import Connector
from service.protocol.epoch import SEQUENCE_BITS
from service.protocol.ids import DATABASE_GRAPH, Epoch, RelationId, WorkerId
from tests.conformance.test_meta_store_sources import made, new_follower
from tests.support.http import Checks
from tests.support.meta_store import (
    NOW,
    add_created,
    add_creating,
    committed,
    new_table,
    new_view,
    registration,
    running,
    table_and_view,
)
from tests.support.pages import pages, send, text_of

pytestmark = pytest.mark.postgres

HOSTILE = "<script>alert(1)</script> \"'&{{7*7}} שלום\u202e"
ADDRESSES = [page.path.replace("{job}", "m") + ("?name=t" if page.path == "/relation" else "") for page in PAGES]


@dataclass
class Versions:
    """A state store in which each table of a lake has this version since a second after 1970 began, or that is away."""

    version: int | None

    async def lake_versions(self, relations: Collection[RelationId]) -> Mapping[RelationId, tuple[int, Epoch]]:
        if self.version is None:
            raise Unavailable("away")
        return {one: (self.version, Epoch(1000 << SEQUENCE_BITS)) for one in relations}


async def hostile(stores: PostgresStores, name: str = HOSTILE) -> None:
    """A table and a failed view over it, all of whose texts are hostile."""
    async with stores.begin() as tx:
        table = await add_created(tx, new_table(name))
        view = await add_creating(tx, new_view("m", table.relation))
        await tx.jobs.move(view.id, JobEvent.FAILED, now=NOW, error=f"cannot: {name}")
        await tx.events.append("job.failed", {"job": view.id, "error": name}, now=NOW)


@pytest.mark.parametrize("address", [one for one in ADDRESSES if one not in {"/jobs/m", "/relation?name=t"}])
async def test_a_page_of_nothing_says_so(http: httpx.AsyncClient, stores: PostgresStores, address: str) -> None:
    await running(stores)
    page = await http.get(address)
    assert page.status_code == 200, page.text
    assert "<h1>" in page.text


@pytest.mark.parametrize("address", ADDRESSES)
async def test_every_page_shows_a_table_and_a_view(
    http: httpx.AsyncClient, stores: PostgresStores, address: str
) -> None:
    await table_and_view(stores)
    await running(stores)
    page = await http.get(address)
    assert page.status_code == 200, page.text
    assert " style=" not in page.text
    assert "<script>" not in page.text
    for name, value in (("x-content-type-options", "nosniff"), ("cache-control", "no-store")):
        assert page.headers[name] == value
    assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")


@pytest.mark.parametrize("address", [*[one for one in ADDRESSES if "=t" not in one], f"/relation?name={HOSTILE}"])
async def test_texts_of_users_are_texts_on_every_page(
    http: httpx.AsyncClient, stores: PostgresStores, address: str
) -> None:
    await hostile(stores)
    page = await http.get(address)
    assert "alert(1)</script>" not in page.text.replace("&lt;script&gt;alert(1)&lt;/script&gt;", "")


async def test_a_name_of_ten_thousand_characters_is_shortened_in_the_picture_only(
    http: httpx.AsyncClient, stores: PostgresStores
) -> None:
    await hostile(stores, "long" * 2_500)
    overview = await http.get("/")
    assert '<text class="name" x="10" y="19">longlonglonglonglong…</text>' in overview.text
    assert "long" * 2_500 in overview.text


async def test_the_overview_shows_first_what_needs_somebody(stores: PostgresStores) -> None:
    await hostile(stores, "t")
    checks = Checks({"meta_store": "ok", "leader": "ok", "worker": "no worker is alive"}, leads=lambda: False)
    async with pages(stores, checks=checks) as http:
        text = text_of(await http.get("/"))
    assert text.index("Not ready worker no worker is alive") < text.index("Failed m cannot: t")
    assert "Leader another service" in text
    assert text.index("Failed m cannot: t") < text.index("The graph as a list")


async def test_the_overview_draws_what_reads_what(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    _, view = await table_and_view(stores)
    page = await http.get("/")
    assert f'href="/jobs/{view.id}"' in page.text
    assert page.text.count('<path class="edge"') == 1
    assert "m : materialized view, waits, 0.0 %: 0 of 0 rows reads t" in text_of(page)


async def test_jobs_are_filtered_by_state(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    await table_and_view(stores)
    assert 'id="job-2"' in (await http.get("/jobs?state=unfinished")).text
    created = await http.get("/jobs?state=Created")
    assert 'id="job-1"' in created.text
    assert 'id="job-2"' not in created.text
    assert (await http.get("/jobs?state=nonsense")).status_code == 422
    assert (await http.get("/jobs?after=x")).status_code == 422


async def test_what_is_not_there_is_an_error_page(http: httpx.AsyncClient) -> None:
    for address in ("/jobs/7", "/jobs/nothing", "/relation?name=nothing", "/jobs/99999999999999999999"):
        page = await http.get(address)
        assert page.status_code in {404, 422}
        assert "<h1>" in page.text


async def test_an_address_of_nothing_is_an_error_page_for_browsers(http: httpx.AsyncClient) -> None:
    page = await http.get("/nowhere", headers={"accept": "text/html"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "no page has this address" in page.text
    for address, accepted in (("/nowhere", "*/*"), ("/v1/nowhere", "text/html")):
        answer = await http.get(address, headers={"accept": accepted})
        assert (answer.status_code, answer.json()["status"]) == (404, 404)


async def test_programs_get_the_text_of_the_api_at_the_root(http: httpx.AsyncClient) -> None:
    found = await http.get("/", headers={"accept": "*/*"})
    assert found.headers["content-type"].startswith("text/plain")
    read_again = await http.get("/", headers={"accept": "*/*", "hx-request": "true"})
    assert 'id="live"' in read_again.text
    assert (await http.get("/v1/nothing")).headers["content-type"] == "application/problem+json"


async def test_a_form_does_what_the_api_does(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    _, view = await table_and_view(stores)
    answer = await send(http, f"/jobs/{view.id}/throttle", f"/jobs/{view.id}", limit="500")
    assert str(answer.url.path) == f"/jobs/{view.id}"
    assert f"Done: job {view.id} limited to 500: queued as command 1" in text_of(answer)
    async with stores.begin() as tx:
        (command,) = await tx.commands.waiting(DATABASE_GRAPH)
        (entry,) = await tx.audit.newest(before=None, limit=2, discreet=True, actor=None, target=None)
    assert command.mutation is not None
    assert command.mutation.type == "throttle"
    assert (entry.route, entry.target, entry.statement) == (
        "/jobs/{job}/throttle",
        str(view.id),
        '{"backfill_rate_limit":500}',
    )


async def test_a_refused_form_says_why_on_its_page(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    table, _ = await table_and_view(stores)
    answer = await send(http, f"/jobs/{table.id}/pause", "/jobs")
    assert "Refused: " in text_of(answer)
    assert "a limit is a whole number" in text_of(await send(http, "/jobs/2/throttle", "/jobs", limit="fast"))
    again = await http.get(answer.url.path)
    assert "Refused" not in again.text


async def test_all_that_match_are_paused_and_those_that_refuse_are_counted(
    http: httpx.AsyncClient, stores: PostgresStores
) -> None:
    await table_and_view(stores)
    unsure = await send(http, "/jobs/act", "/jobs", state="present", what="pause")
    assert "Refused: tick the box to pause every job that matches" in text_of(unsure)
    done = await send(http, "/jobs/act", "/jobs", state="present", what="pause", sure="1")
    assert "Done: pause: 1 jobs; 1 refused, the first because t:" in text_of(done)


async def test_a_job_is_cancelled_by_whoever_means_it(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    _, view = await table_and_view(stores)
    refused = text_of(await send(http, f"/jobs/{view.id}/cancel", f"/jobs/{view.id}"))
    assert "Refused: tick the box to cancel the job" in refused
    async with stores.begin() as tx:
        (found,) = await tx.jobs.where(ids=[view.id])
    assert found.state is JobState.CREATING


async def test_a_failed_job_has_no_controls_and_says_what_to_do(
    http: httpx.AsyncClient, stores: PostgresStores
) -> None:
    await hostile(stores, "t")
    text = text_of(await http.get("/jobs/m"))
    assert "Drop it and create it again, once the cause is removed." in text
    assert "stopped" in text
    assert "Controls" not in text
    assert "reading" not in text


async def test_an_unexpected_error_is_a_page(stores: PostgresStores, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_world: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("service.operations.status.history.workers", broken)
    async with pages(stores) as http:
        page = await http.get("/workers")
    assert page.status_code == 500
    assert "<h1>The service failed</h1>" in page.text
    assert "secret" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


async def test_a_source_without_a_location_is_shown(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    source = await made(stores, "shop_db")
    async with stores.begin() as tx:
        await add_created(tx, new_follower(source, "payments"))
    text = text_of(await http.get("/sources"))
    assert "Location - Slot" in text
    assert "payments public.orders" in text


async def test_a_relation_of_a_lake_says_where_it_lies_and_its_version(stores: PostgresStores) -> None:
    lake = Connector(name="deltalake", options={"location": "s3://bucket/orders"})
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        view = new_view("m", table.relation)
        scans = tuple(replace(one, sink=lake) for one in view.table_scans)
        await add_created(tx, replace(view, fragments=scans))
    for versions, version in ((Versions(17), "17 since 1970-01-01 00:00:01Z"), (Versions(None), "")):
        async with pages(stores, tables=versions) as http:
            lake, one = text_of(await http.get("/sinks")), text_of(await http.get("/relation?name=m"))
        assert "Version Location m Creating" in lake
        assert f"{version} s3://bucket/orders" in lake
        assert f"Location of its rows s3://bucket/orders {'Version ' if version else ''}{version}" in one


async def test_a_worker_names_the_job_that_it_serves_alone(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    _, view = await table_and_view(stores)
    await committed(stores)
    async with stores.begin() as tx:
        own = (await tx.partial_graphs.begin(view.id, indexed=True)).graph
        alone = registration(WorkerId("w-2")).model_copy(update={"graph": own})
        await tx.workers.register(alone, now=NOW)
    text = text_of(await http.get("/workers"))
    assert "w-1 1 all that have no worker of their own" in text
    assert f"w-2 {own} m" in text


async def test_a_job_names_the_worker_that_runs_it(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    _, view = await table_and_view(stores)
    assert "Worker w-1" not in text_of(await http.get("/jobs/m"))
    await running(stores)
    assert "Worker w-1 on " in text_of(await http.get("/jobs/m"))
    async with stores.begin() as tx:
        await tx.jobs.move(view.id, JobEvent.FAILED, now=NOW, error="a value")
    assert "Worker w-1 on " not in text_of(await http.get("/jobs/m"))


async def test_every_page_shows_a_broken_table_in_the_same_words(
    http: httpx.AsyncClient, stores: PostgresStores
) -> None:
    source = await made(stores)
    async with stores.begin() as tx:
        table = await add_created(tx, new_follower(source, "followed"))
        await add_created(tx, new_view("over_it", table.relation))
        await tx.following.broke(source.id, "a change is missing", now=NOW)
        await tx.visibility.publish(DATABASE_GRAPH, Epoch(0), now=NOW)
    relations = text_of(await http.get("/relations"))
    assert "followed table Created Broken" in relations
    assert "over_it materialized view Created Stale" in relations
    for address in ("/relation?name=followed", "/jobs/followed"):
        assert "followed Created Broken" in text_of(await http.get(address))
    for address in ("/jobs", "/queue"):
        assert "followed Created Broken" in text_of(await http.get(address))
    assert "Broken followed a change is missing" in text_of(await http.get("/"))


async def test_the_audit_trail_names_jobs_by_their_relations(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    _, view = await table_and_view(stores)
    await send(http, f"/jobs/{view.id}/pause")
    await send(http, "/jobs/act", state="Creating", what="throttle", limit="7", sure="1")
    page = await http.get("/audit")
    assert page.text.count(f'<a href="/jobs/{view.id}">m</a> (job {view.id})') == 2
    assert f"POST /jobs/act m (job {view.id})" in text_of(page)


async def test_the_overview_reads_no_columns(
    http: httpx.AsyncClient, stores: PostgresStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hostile(stores, "t")
    parsed: list[str] = []
    parse = ColumnType.parse

    def counted(text: str) -> ColumnType:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(ColumnType, "parse", counted)
    assert (await http.get("/")).status_code == 200
    assert parsed == []
    await http.get("/relations")
    assert len(parsed) == 10, "the columns of two relations"


async def test_all_backfills_are_paused_by_a_barrier(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    assert "every backfill paused: queued as command 1" in text_of(await send(http, "/pause"))
    async with stores.begin() as tx:
        (command,) = await tx.commands.waiting(DATABASE_GRAPH)
    assert command.mutation is not None
    assert command.mutation.type == "pause"


async def test_a_parameter_is_set_and_a_bad_value_is_refused(http: httpx.AsyncClient) -> None:
    done = await send(http, "/parameters", "/parameters", name="barrier_interval_ms", value="500")
    assert "Done: barrier_interval_ms was set" in text_of(done)
    assert "barrier_interval_ms 500 1000 changed 50 to 3,600,000" in text_of(done)
    refused = await send(http, "/parameters", "/parameters", name="barrier_interval_ms", value="7")
    assert "Refused: " in text_of(refused)


async def test_the_secret_of_a_parameter_is_not_shown(http: httpx.AsyncClient) -> None:
    url = "http://user:told@localhost/health?key=told"
    await send(http, "/parameters", "/parameters", name="backfill_auto_probe_http", value=url)
    for address in ("/parameters", "/events", "/audit"):
        assert "told" not in (await http.get(address)).text


async def test_sql_shows_its_error_in_place(http: httpx.AsyncClient) -> None:
    answer = await send(http, "/sql", "/sql", sql="CREATE NONSENSE x", session="")
    assert answer.status_code == 200
    assert 'role="alert"' in answer.text
    assert ">CREATE NONSENSE x</textarea>" in answer.text
    assert "there is no statement" in text_of(await send(http, "/sql", "/sql", sql=" "))


async def test_sql_creates_in_the_background_and_leads_to_the_job(
    http: httpx.AsyncClient, stores: PostgresStores
) -> None:
    await table_and_view(stores)
    session = text_of(await send(http, "/sql", "/sql", sql="SET streaming_parallelism = 3"))
    assert "streaming_parallelism 3" in session
    answer = await send(http, "/sql", "/sql", sql="SHOW TABLES")
    assert "SHOW" in text_of(answer)


@pytest.mark.soak
async def test_a_thousand_jobs_cost_less_than_fifty_milliseconds_a_refresh(
    http: httpx.AsyncClient, stores: PostgresStores
) -> None:
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        for number in range(999):
            await add_creating(tx, new_view(f"view_{number}", table.relation, parallelism=1))
    async with stores.begin() as tx:
        assert len(await tx.jobs.where({JobState.CREATING})) == 999
    took: dict[str, float] = {}
    for address in ("/jobs", "/jobs", "/jobs?limit=1000", "/"):
        began = time.process_time()
        page = await http.get(address)
        took[address] = time.process_time() - began
        assert page.status_code == 200
    assert 'href="/jobs?state=present&amp;after=200"' in (await http.get("/jobs")).text
    assert took["/jobs"] < 0.25, "five times what it takes on a machine that does nothing else"


async def test_a_picture_of_three_hundred_relations(http: httpx.AsyncClient, stores: PostgresStores) -> None:
    async with stores.begin() as tx:
        last: Any = await add_created(tx, new_table("t"))
        for number in range(299):
            last = await add_created(tx, new_view(f"view_{number}", last.relation, parallelism=1))
            if number % 10 == 9:
                last = await add_created(tx, new_table(f"t_{number}")) if number < 290 else last
    page = await http.get("/")
    assert page.text.count('class="frame"') > 300
