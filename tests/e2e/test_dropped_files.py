"""Folders of Parquet files that are read in place, with real processes: another program drops files meanwhile."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from tests.support.drops import drop, rows
from tests.support.mirrored_lake import in_lake
from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

VIEWS: Final = {
    "joined": "SELECT e.id, e.amount, c.name FROM {events} e JOIN cities c ON c.city = e.city",
    "grouped": "SELECT city, count(*) AS n, sum(amount) AS total FROM {events} GROUP BY city",
    "firsts": (
        "SELECT city, id, amount FROM (SELECT city, id, amount, row_number() OVER (PARTITION BY city ORDER BY amount"
        " DESC, id) AS place FROM {events}) ranked WHERE place <= 2"
    ),
}


class Drops:
    """A folder, and a table with the same rows."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service, self.folder = service, folder
        service.run("CREATE TABLE mirror (id bigint PRIMARY KEY, city text, amount numeric(10, 2))")

    def drop(self, name: str, first: int, count: int, city: str = "Oslo") -> None:
        table = rows(first, count, city)
        drop(self.folder / name, table)
        values = (
            f"({one['id']}, {'NULL' if one['city'] is None else repr(one['city'])}, {one['amount']})"
            for one in table.to_pylist()
        )
        self.service.run(f"INSERT INTO mirror VALUES {', '.join(values)}")

    def equal(self, views: Mapping[str, str]) -> None:
        """Wait until each view has what its query gives over the rows of all files."""
        for name, query in views.items():
            wanted = query.format(events="mirror")
            differing = f"SELECT * FROM (({wanted}) EXCEPT ALL (SELECT * FROM {name})) d LIMIT 1"
            counted = f"SELECT (SELECT count(*) FROM {name}) = (SELECT count(*) FROM ({wanted}) q)"
            until(
                lambda differing=differing, counted=counted: (
                    self.service.sql(differing) == [] and self.service.value(counted)
                ),
                what=lambda name=name: (self.service.get(f"/v1/jobs/{name}"), self.service.log_tail()),
            )


def shown(service: Service, name: str) -> dict[str, Any]:
    return service.get(f"/v1/jobs/{name}")["job"]


@pytest.mark.soak
def test_i3_i12_views_over_a_folder_take_each_file_once_over_kills(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "drop/events"
    made = Drops(service, folder)
    for number in range(5):
        made.drop(f"{number}.parquet", number * 1000, 700)
    service.run("CREATE TABLE cities (city text PRIMARY KEY, name text)")
    service.run("INSERT INTO cities VALUES ('Oslo', 'OSL'), ('Bergen', 'BGO')")
    service.run(f"CREATE SOURCE drops WITH (connector = 'file', location = '{tmp_path}/drop')")
    service.run("CREATE TABLE events (*, PRIMARY KEY (id)) FROM drops TABLE 'events'")
    assert service.value("SELECT count(*) FROM events") == 3500
    for name, query in VIEWS.items():
        text = f"CREATE MATERIALIZED VIEW {name} AS {query.format(events='events')}"
        service.run(text, background_ddl="true", backfill_rate_limit="200" if name == "joined" else "1500")
    joined = service.job("joined")
    service.until_rows(joined, 0)
    service.limit(joined, 0)
    made.drop("5.parquet", 10_000, 300, "Bergen")
    # A program writes a file where it is, and is not done yet.
    pq.write_table(rows(20_000, 200), tmp_path / "whole")
    half = (tmp_path / "whole").read_bytes()
    (folder / "6.parquet").write_bytes(half[: len(half) // 2])
    service.kill_worker()
    stopped = service.rows(joined)
    assert 0 < stopped < 3500
    made.drop("day=1/7.parquet", 30_000, 100, "Bergen")
    service.limit(joined, None)
    for name in VIEWS:
        service.until_created(name)
    made.equal(VIEWS)
    (folder / "6.parquet").unlink()
    made.drop("6.parquet", 20_000, 200)
    service.kill_worker()
    made.drop("8.parquet", 40_000, 50)
    service.run("UPDATE cities SET name = 'Oslo' WHERE city = 'Oslo'")
    made.equal(VIEWS)
    for name in VIEWS:
        assert service.verified(name)["equal"]
    count = service.value("SELECT count(*) FROM mirror")
    assert service.value("SELECT count(*) FROM events") == count
    assert service.stored("SELECT key_count FROM tidefill.relation WHERE name = 'events' AND NOT dropped") == [(count,)]
    assert shown(service, "events")["waiting"] is None
    assert "lie in a lake" in str(service.refused("INSERT INTO events VALUES (1, 'x', 1)"))
    # The file is gone, and with it what `events` was: nothing changes in the views.
    (folder / "3.parquet").unlink()
    until(lambda: shown(service, "events")["state"] == "Failed", what=service.log_tail)
    assert 'file "3.parquet" is gone since it was first read' in shown(service, "events")["error"]
    made.equal(VIEWS)
    assert "is stale since" in str(service.run("SELECT * FROM grouped")["notices"])


@pytest.mark.soak
def test_i5_a_folder_that_is_away_is_waited_for(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "drop"
    folder.mkdir()
    made = Drops(service, folder)
    options = f"WITH (connector = 'file', location = '{folder}', match_pattern = '*.parquet')"
    refused = service.refused(f"CREATE TABLE events (*, PRIMARY KEY (id)) {options}")
    assert "no whole file is there, whose columns * could be" in str(refused)
    columns = "id bigint, city text, amount numeric(10, 2)"
    service.run(f"CREATE TABLE events ({columns}, PRIMARY KEY (id)) {options}")
    view = {"grouped": VIEWS["grouped"]}
    service.run(f"CREATE MATERIALIZED VIEW grouped AS {VIEWS['grouped'].format(events='events')}")
    service.run(
        f"CREATE MATERIALIZED VIEW copied USING delta LOCATION '{tmp_path}/out' WITH (commit_interval = '1 s')"
        " AS SELECT id, amount FROM events WHERE amount > 0"
    )
    made.drop("a.parquet", 1, 50)
    made.equal(view)
    folder.rename(tmp_path / "away")
    found = until(lambda: shown(service, "events")["waiting"], what=service.log_tail)
    assert (found["reason"], found["since"] is not None) == ("source", True)
    assert "cannot be read now, and is tried again by itself" in found["text"]
    service.kill_worker()
    made.equal(view)
    (tmp_path / "away").rename(folder)
    made.drop("b.parquet", 100, 50)
    made.equal(view)
    until(lambda: shown(service, "events")["waiting"] is None, what=service.log_tail)
    # One that no row of the table can be in is told of, and harms nothing.
    drop(folder / "c.parquet", rows(500, 5).drop_columns(["id"]))
    made.drop("d.parquet", 200, 50)
    made.equal(view)
    found = until(lambda: shown(service, "events")["waiting"], what=service.log_tail)
    assert 'file "c.parquet" is left out: column "id" of the primary key is not in it' in found["text"]
    (folder / "c.parquet").unlink()
    until(lambda: shown(service, "events")["waiting"] is None, what=service.log_tail)
    wanted = sorted((tuple(row) for row in service.sql("SELECT id, amount FROM mirror WHERE amount > 0")), key=repr)
    until(lambda: in_lake(tmp_path / "out") == wanted, what=service.log_tail)
