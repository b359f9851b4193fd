"""Tables that follow a live external Postgres and lie in Delta tables, with real processes (I14)."""

from itertools import zip_longest
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.e2e.test_cdc import ITEMS, changing
from tests.support.production import External, source, until_backfilled
from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

FILL = (
    "insert into items select g, 'item ' || g, g / 4.0, timestamptz '2026-01-01' + g * interval '1 min', 'c' || g % 7"
    " from generate_series(1, {rows}) g"
)
COLUMNS = "id, name, price, at, code"


def held(folder: Path) -> list[tuple[object, ...]]:
    """Return what another reader finds in the Delta table."""
    return sorted(tuple(row.values()) for row in DeltaTable(str(folder)).to_pyarrow_table().to_pylist())


def until_held(external: External, folder: Path) -> int:
    """Wait until the Delta table equals the external one, and return how many rows that has."""
    wanted = sorted(external.rows("select id, name, price, at, code from items"))

    def differing() -> object:
        pairs = zip_longest(held(folder), wanted)
        return [pair for pair in pairs if pair[0] != pair[1]][:2]

    until(lambda: not differing(), what=differing)
    return len(wanted)


@pytest.mark.soak
def test_a_followed_table_lies_in_a_lake(service: Service, external: External, tmp_path: Path) -> None:
    folder = tmp_path / "items"
    external.run(ITEMS, FILL.format(rows=20_000))
    service.run(source(external))
    with changing(external):
        service.run(
            f"CREATE TABLE items (*) USING delta LOCATION '{folder}' FROM pg TABLE 'public.items'"
            " WITH (commit_interval = '1 s', backfill_rate_limit = 8000)",
        )
        service.run("CREATE MATERIALIZED VIEW cheap AS SELECT id, name, price FROM items WHERE price < 1000")
        service.kill_worker()
        until_backfilled(service, "items")
        service.kill()
        service.start()
    rows = until_held(external, folder)
    until(lambda: service.value("SELECT count(*) FROM items") == rows, what="the table in the lake is selected")
    cheap = external.texts("select id, name, price from items where price < 1000")
    until(lambda: texts(service, "cheap") == cheap, what="the view follows the table")

    external.run("truncate items", "insert into items values (1, 'one', 1, now(), 'a')")
    external.run("insert into items values (2, 'two', 2, now(), 'b')", "delete from items where id = 1")
    assert until_held(external, folder) == 1
    external.run(FILL.format(rows=2_000).replace("generate_series(1", "generate_series(3"))
    until_held(external, folder)

    moved = folder.rename(tmp_path / "moved")
    external.run("update items set price = 5 where id % 2 = 0")
    until(lambda: "its rows wait for its Delta table" in str(table(service)), what=lambda: table(service))
    moved.rename(folder)
    until_held(external, folder)
    (log,) = service.stored("select 'state.' || relname from pg_class where relname ~ '^l_[0-9]+$'")
    until(lambda: service.stored(f"select count(*) from {log[0]}") == [(0,)], what="the log is empty")

    DeltaTable(str(folder)).delete("id % 2 = 0")
    external.run("update items set price = 6 where id % 3 = 0")
    until(lambda: table(service)["state"] == "broken", what="the table is broken")
    assert "another program has changed rows of the Delta table" in str(table(service)["reason"])
    service.run("ALTER TABLE items RELOAD")
    until_held(external, folder)
    service.run("DROP TABLE items CASCADE")
    assert not [*(folder / "_tidefill").iterdir()]


@pytest.mark.soak
def test_its_history_is_limited_paused_rescaled_and_dropped(
    service: Service, external: External, tmp_path: Path
) -> None:
    folder = tmp_path / "items"
    external.run(ITEMS, FILL.format(rows=20_000))
    service.run(source(external))
    place = f"CREATE TABLE items (*) USING delta LOCATION '{folder}' FROM pg TABLE 'public.items'"
    options = "commit_interval = '200 ms', backfill.parallelism = 2, backfill.num_rows_per_split = 5000"
    service.run(f"{place} WITH ({options}, backfill_rate_limit = 0)")
    external.run("update items set price = 7 where id < 10")
    service.flush()
    service.flush()
    assert held(folder) == [], "a limit of 0 reads no history, and nothing of what is not read is followed"
    service.run("ALTER TABLE items SET BACKFILL_RATE_LIMIT TO 500")
    until(lambda: bool(held(folder)), what="a part of the history")
    service.mutate({"type": "pause"})
    service.flush()
    job = service.job("items")
    read = service.rows(job)
    external.run("insert into items values (0, 'new', 1, now(), 'x')")
    until(lambda: len(held(folder)) >= read, what="what was read is carried while the graph is paused")
    service.flush()
    assert service.rows(job) == read
    service.mutate({"type": "resume"})
    logs = "select relname from pg_class where relname ~ '^l_[0-9]+$'"
    assert len(service.stored(logs)) == 1
    service.run("DROP TABLE items")
    until(lambda: service.stored(logs) == [], what="its log is removed")
    assert not [*(folder / "_tidefill").iterdir()]
    assert "has rows already" in str(service.refused(f"{place} WITH ({options})"))
    place = place.replace(str(folder), f"{folder}-again")
    service.run(f"{place} WITH ({options}, backfill_rate_limit = 500)")
    service.run("ALTER TABLE items SET BACKFILL_PARALLELISM = 1")
    external.run("update items set price = 8 where id % 5 = 0")
    service.kill_worker()
    service.run("ALTER TABLE items SET BACKFILL_PARALLELISM = 2")
    assert service.rows(service.job("items")) < 20_000
    service.run("ALTER TABLE items SET BACKFILL_RATE_LIMIT TO DEFAULT")
    until_held(external, Path(f"{folder}-again"))


def table(service: Service) -> dict[str, object]:
    """Return the state of the table, as its source shows it."""
    (found,) = service.get("/v1/sources/pg")["tables"]
    return found


def texts(service: Service, view: str) -> list[tuple[str | None, ...]]:
    """Return the rows of a view as the external database prints them."""
    return sorted((one,) for (one,) in service.sql(f"SELECT ({view}.*)::text FROM {view}"))
