"""The pages of a real service in a real Chromium, while something happens."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import Reader, reading, running_chromium
from tests.support.service import API_TOKEN, Service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.e2e
ROWS = 20_000


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    """A running Chromium. Playwright's event loop runs as long as it, and lets no other test have one."""
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def reader(chromium: "Browser", service: Service) -> Iterator[Reader]:
    """Someone who has logged in as an admin."""
    with reading(chromium, service.url) as one:
        one.log_in(API_TOKEN)
        one.page.wait_for_url(f"{service.url}/")
        yield one


def orders(service: Service) -> None:
    service.run("CREATE TABLE orders (id int primary key, customer int, note text)")
    service.run(f"INSERT INTO orders SELECT g, g % 100, '1' FROM generate_series(1, {ROWS}) g")


def slow_view(service: Service, name: str = "slow") -> int:
    sql = f"CREATE MATERIALIZED VIEW {name} AS SELECT id, customer FROM orders"
    return int(service.run(sql, background_ddl="true", backfill_rate_limit="100")["job"])


def notice(page: "Page") -> str:
    """Return what the last form said."""
    return page.locator(".notice").first.inner_text()


def test_a_backfill_is_watched_throttled_paused_resumed_and_cancelled(service: Service, reader: Reader) -> None:
    orders(service)
    job = slow_view(service)
    page = reader.go(f"/jobs/{job}")
    bar = page.locator(".bar-text").first
    page.get_by_text("reading").first.wait_for()
    before = bar.inner_text()
    # It moves while nobody does anything: the page reads itself again.
    page.locator(".bar-text").first.filter(has_not_text=before).wait_for()
    page.get_by_label("Limit of every scan").fill("200")
    reader.press("Throttle")
    assert f"job {job} limited to 200 at epoch" in notice(page)
    page.get_by_text("200 rows/s and actor").first.wait_for()
    reader.press("Pause")
    assert f"job {job} paused at epoch" in notice(page)
    page.get_by_text("its history is paused").first.wait_for()
    reader.press("Resume")
    assert f"job {job} resumed at epoch" in notice(page)
    page.get_by_label("I mean it").check()
    reader.press("Cancel, and remove what it made")
    assert f"job {job} was cancelled" in notice(page)
    assert service.state(job) == "Cancelled"


def test_all_backfills_are_paused_and_resumed_from_the_overview(service: Service, reader: Reader) -> None:
    orders(service)
    slow_view(service)
    page = reader.go("/")
    reader.press("Pause all backfills")
    assert "every backfill paused at epoch" in notice(page)
    assert service.graph()["paused"]
    page.get_by_role("region", name="What needs you").get_by_text("slow").wait_for()
    reader.press("Resume all backfills")
    page.get_by_role("button", name="Pause all backfills").wait_for()
    assert not service.graph()["paused"]


def test_a_verification_shows_the_keys_that_differ(service: Service, reader: Reader) -> None:
    orders(service)
    service.run("CREATE MATERIALIZED VIEW copied AS SELECT id, customer FROM orders")
    job = service.job("copied")
    page = reader.go(f"/jobs/{job}")
    reader.press("Verify")
    page.get_by_text("equal", exact=True).wait_for()
    table = service.get("/v1/relations/copied")["id"]
    with service.store() as connection:
        connection.execute(f"delete from state.t_{table} where id = 7".encode())
    reader.press("Verify")
    page.get_by_text("DIFFERENT", exact=True).wait_for()
    differing = page.get_by_role("region", name="Differing rows").inner_text()
    assert "missing" in differing
    assert "7" in differing.split()


def test_a_failed_view_stands_first_and_says_why(service: Service, reader: Reader) -> None:
    orders(service)
    service.run("CREATE MATERIALIZED VIEW counted AS SELECT id, note::int AS n FROM orders")
    service.run("INSERT INTO orders VALUES (0, 0, 'none')")
    page = reader.go("/")
    row = page.get_by_role("region", name="What needs you").locator("tr", has_text="counted").first
    row.get_by_text("Failed", exact=True).wait_for()
    row.get_by_role("link", name="counted").click()
    page.get_by_text("none").first.wait_for()


@pytest.mark.soak
def test_a_sink_whose_target_is_away_says_so(service: Service, reader: Reader, tmp_path: Path) -> None:
    orders(service)
    target = tmp_path / "target"
    service.run(f"CREATE SINK away FROM orders WITH (connector = 'deltalake', location = '{target}', type = 'upsert')")
    row = reader.go("/sinks").locator("tr", has_text="away").first
    row.get_by_text("Created").wait_for()
    shutil.rmtree(target)
    target.write_text("a file where the table was")
    service.run("INSERT INTO orders VALUES (0, 0, '0')")
    row.locator("td.text", has_text="times in a row").wait_for()
    reader.go("/").get_by_role("region", name="What needs you").get_by_text("away", exact=True).wait_for()
    target.unlink()


def test_a_statement_is_explained_then_run_then_its_job_is_followed(service: Service, reader: Reader) -> None:
    orders(service)
    page = reader.go("/sql")
    field = page.get_by_label("Statement")
    field.fill("SELECT id,\n  nothing FROM orders")
    with page.expect_navigation():
        field.press("Control+Enter")
    assert page.get_by_role("alert").inner_text().splitlines()[1:] == ["  nothing FROM orders", "  ^"]
    field.fill("CREATE MATERIALIZED VIEW summed AS SELECT customer, count(*) AS n FROM orders GROUP BY customer")
    reader.press("Explain")
    page.get_by_role("img", name="The plan").wait_for()
    assert "StreamMaterialize" in page.locator("pre").inner_text()
    reader.press("Run")
    page.get_by_role("link", name=re.compile(r"job \d+")).click()
    page.get_by_role("heading", name="summed").wait_for()
    page.get_by_text("Created", exact=True).first.wait_for()
    field = reader.go("/sql").get_by_label("Statement")
    field.fill("SELECT customer, n FROM summed WHERE customer = 7")
    reader.press("Run")
    assert page.locator("tbody tr").all_inner_texts() == [f"7\t{ROWS // 100}"]


@pytest.mark.soak
def test_a_page_goes_on_when_a_killed_service_is_back(killable: Service, chromium: "Browser") -> None:
    orders(killable)
    job = slow_view(killable)
    with reading(chromium, killable.url) as reader:
        reader.expected = (
            "ERR_CONNECTION",
            "ERR_INCOMPLETE",
            "net::",
            "status of 401",
            "status of 503",
            "htmx:",
            "[object Event]",
        )
        reader.log_in(API_TOKEN)
        page = reader.go(f"/jobs/{job}")
        page.get_by_role("heading", name="slow").wait_for()
        killable.kill()
        page.get_by_text("The service does not answer").wait_for()
        killable.restart()
        # Sessions are in the memory of the process that was killed.
        page.get_by_role("heading", name="Log in").wait_for()
        reader.log_in(API_TOKEN)
        page.wait_for_url(f"{killable.url}/")
        reader.go(f"/jobs/{job}").get_by_role("heading", name="slow").wait_for()
