"""Pages of a known state in a real Chromium: roles, many jobs, large graphs, faults, and what axe finds."""

from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from service.api.settings import ApiSettings
from service.domain.job import JobEvent
from service.domain.roles import Role
from service.meta_store.stores import PostgresStores
from service.operations import tokens
from service.pages.table import PAGES
from service.ports.audit import Asker
from tests.conformance.test_meta_store_sources import made, new_follower
from tests.support.browser import Scheme, reading
from tests.support.http import WORKER_TOKEN, Checks, world_of
from tests.support.meta_store import NOW, add_created, add_creating, new_table, new_view, running, table_and_view
from tests.support.pages_server import pages_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

ROOT = "the root's own"
CLOSED = ApiSettings(worker_token=SecretStr(WORKER_TOKEN), api_token=SecretStr(ROOT))
TROUBLED = Checks({"meta_store": "ok", "leader": "ok", "worker": "no worker is alive"})
ADDRESSES = [page.path.replace("{job}", "2") + ("?name=t" if page.path == "/relation" else "") for page in PAGES]


async def small(stores: PostgresStores) -> None:
    """A table, a view that is being created, a failed one, a sink's worth of names, and a barrier."""
    table, _ = await table_and_view(stores)
    await running(stores)
    async with stores.begin() as tx:
        failed = await add_creating(tx, new_view("<b>\"failed'</b>", table.relation))
        await tx.jobs.move(failed.id, JobEvent.FAILED, now=NOW, error="a row <i>cannot</i> be cast")


async def thousand(stores: PostgresStores) -> None:
    async with stores.begin() as tx:
        table = await add_created(tx, new_table("t"))
        for number in range(999):
            await add_creating(tx, new_view(f"view_{number}", table.relation, parallelism=1))


async def three_hundred(stores: PostgresStores) -> None:
    async with stores.begin() as tx:
        last = await add_created(tx, new_table("t"))
        for number in range(299):
            read = last.relation if number % 7 else (await add_created(tx, new_table(f"t_{number}"))).relation
            last = await add_created(tx, new_view(f"view_{number}", read, parallelism=1))


async def viewer_of(stores: PostgresStores, role: Role) -> str:
    made = await tokens.create(world_of(stores), role, role, None, asked_by=Asker("test", Role.ADMIN))
    return made.text


@pytest.mark.parametrize(("scheme", "width"), [("dark", 390), pytest.param("light", 1280, marks=pytest.mark.soak)])
def test_axe_finds_nothing_on_any_page(chromium: "Browser", database_url: str, scheme: Scheme, width: int) -> None:
    found: dict[str, list[str]] = {}
    with (
        pages_server(database_url, small, checks=TROUBLED) as url,
        reading(chromium, url, scheme=scheme, width=width) as reader,
    ):
        for address in ADDRESSES:
            page = reader.go(address)
            if violations := reader.violations():
                found[address] = violations
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{address} is too wide"
    assert found == {}


def test_on_a_phone_a_row_stands_by_itself_with_its_headings(chromium: "Browser", database_url: str) -> None:
    with pages_server(database_url, small, checks=TROUBLED) as url, reading(chromium, url, width=390) as reader:
        for address, heading in (("/", "Why"), ("/jobs", "Why it waits, or failed"), ("/queue", "Why it waits")):
            page = reader.go(address)
            cell = page.locator(f'td[data-label="{heading}"]').first
            assert cell.evaluate("it => getComputedStyle(it, '::before').content") == f'"{heading}"'
            assert cell.evaluate("it => it.getBoundingClientRect().right <= window.innerWidth"), address


def test_a_viewer_logs_in_sees_everything_and_changes_nothing(chromium: "Browser", database_url: str) -> None:
    given: list[str] = []

    async def fill(stores: PostgresStores) -> None:
        await small(stores)
        given.append(await viewer_of(stores, Role.VIEWER))

    with pages_server(database_url, fill, settings=CLOSED) as url, reading(chromium, url) as reader:
        reader.expected = ("401", "status of 401")
        page = reader.go("/jobs?state=all")
        assert "/login?next=%2Fjobs" in page.url
        reader.log_in("wrong")
        assert page.get_by_role("alert").inner_text() == "this token is not valid, or not that of a user"
        reader.log_in(given[0])
        page.wait_for_url(f"{url}/")
        page.get_by_text("(viewer)").wait_for()
        page.get_by_role("link", name="Jobs", exact=True).click()
        page.get_by_role("link", name="m", exact=True).click()
        page.get_by_role("heading", name="Scans and stages").wait_for()
        assert page.get_by_role("button").all_inner_texts() == ["Log out"]
        reader.go("/sql").get_by_label("Statement").fill("DROP TABLE t")
        reader.press("Run")
        assert "this needs the role operator" in page.get_by_role("alert").inner_text()
        reader.press("Log out")
        page.get_by_role("heading", name="Log in").wait_for()
        assert "/login" in reader.go("/").url


@pytest.mark.soak
def test_a_thousand_jobs_are_read_page_by_page_and_filtered(chromium: "Browser", database_url: str) -> None:
    with pages_server(database_url, thousand) as url, reading(chromium, url) as reader:
        page = reader.go("/jobs?state=unfinished")
        seen = page.locator("tbody tr").count()
        while page.get_by_role("link", name="More jobs").count():
            with page.expect_navigation():
                page.get_by_role("link", name="More jobs").click()
            seen += page.locator("tbody tr").count()
        assert seen == 999
        page.get_by_label("Do", exact=True).select_option("throttle")
        page.get_by_label("Limit, to throttle").fill("100")
        reader.press("Do it")
        assert "tick the box" in page.get_by_role("alert").inner_text()


@pytest.mark.soak
def test_three_hundred_relations_are_drawn_and_lead_to_their_jobs(chromium: "Browser", database_url: str) -> None:
    with pages_server(database_url, three_hundred) as url, reading(chromium, url) as reader:
        page = reader.go("/")
        boxes = page.locator("svg.graph a")
        assert boxes.count() > 300
        page.get_by_role("link", name="view_298, materialized view", exact=False).first.click()
        page.get_by_role("heading", name="view_298").wait_for()


def test_hostile_names_are_texts(chromium: "Browser", database_url: str) -> None:
    with pages_server(database_url, small) as url, reading(chromium, url) as reader:
        page = reader.go("/jobs?state=Failed")
        page.get_by_role("link", name="<b>\"failed'</b>").click()
        page.get_by_role("heading", name="<b>\"failed'</b>").wait_for()
        assert page.locator("main b, main i").count() == 0
        assert "a row <i>cannot</i> be cast" in page.locator(".notice").first.inner_text()


def test_a_broken_followed_table_has_its_mend_as_a_button(chromium: "Browser", database_url: str) -> None:
    async def fill(stores: PostgresStores) -> None:
        source = await made(stores)
        async with stores.begin() as tx:
            table = await add_created(tx, new_follower(source, "followed"))
            await add_created(tx, new_view("over_it", table.relation))
            await tx.following.broke(source.id, "a change is missing", now=NOW)

    with pages_server(database_url, fill) as url, reading(chromium, url) as reader:
        page = reader.go("/")
        rows = page.get_by_role("region", name="What needs you").locator("tbody tr").all_inner_texts()
        assert [row.split()[:2] for row in rows] == [["Broken", "followed"], ["Stale", "over_it"]]
        page.get_by_role("link", name="Read the table again").click()
        page.get_by_role("button", name="Read the table again").wait_for()
        reader.go("/sources")
        button = page.get_by_role("button", name="Read followed again")
        button.wait_for()
        assert "a change is missing" in page.get_by_role("region", name="Tables that follow pg").inner_text()


def test_the_keyboard_reaches_the_content_and_every_page_works_without_scripts(
    chromium: "Browser", database_url: str
) -> None:
    with pages_server(database_url, small) as url:
        with reading(chromium, url) as reader:
            page = reader.go("/jobs/2")
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        context = chromium.new_context(java_script_enabled=False)
        page = context.new_page()
        page.goto(f"{url}/jobs/2")
        page.get_by_label("Limit of every scan").fill("500")
        with page.expect_navigation():
            page.get_by_role("button", name="Throttle").click()
        assert "limited to 500" in page.locator(".notice").first.inner_text()
        context.close()


@pytest.mark.parametrize(
    "address", [one for one in ADDRESSES if one not in {"/sql", "/parameters", "/relation?name=t"}]
)
def test_a_page_reads_itself_again_and_stays_the_same(chromium: "Browser", database_url: str, address: str) -> None:
    with pages_server(database_url, small) as url, reading(chromium, url) as reader:
        reader.page.clock.install()
        page = reader.go(address)
        before = page.locator("h1").inner_text()
        page.evaluate("document.getElementById('live').dataset.first = 'yes'")
        page.clock.run_for(20_000)
        page.locator("#live:not([data-first])").wait_for()
        assert page.locator("h1").inner_text() == before
        assert page.locator("h1").count() == 1


def test_a_field_in_which_someone_types_is_not_replaced(chromium: "Browser", database_url: str) -> None:
    with pages_server(database_url, small) as url, reading(chromium, url) as reader:
        reader.page.clock.install()
        page = reader.go("/jobs/2")
        field = page.get_by_label("Limit of every scan")
        field.fill("12")
        page.clock.run_for(10_000)
        field.press("End")
        field.press("3")
        assert field.input_value() == "123"
        page.get_by_role("button", name="Throttle").focus()
        with page.expect_response(lambda answer: answer.url.endswith("/jobs/2")):
            page.clock.run_for(20_000)
        assert page.evaluate("document.activeElement.id") == "do-throttle"
