"""Sources that are places in a lake, with real processes: tables of them, and storage that is away and comes back."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from service.protocol.delta import place_of
from tests.support.drops import rows
from tests.support.lakes import SECRET, bucket, object_store
from tests.support.mirrored_lake import FED
from tests.support.service import Service
from tests.support.waiting import until
from workers.connectors.delta_files import Files

pytestmark = pytest.mark.e2e

KEYED = "(*, PRIMARY KEY (id))"


@pytest.mark.soak
def test_i5_tables_of_a_place_in_a_lake_wait_while_it_is_away(service: Service, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    place = f"connector = 'deltalake', location = '{lake}'"
    assert "there is no folder" in str(service.refused(f"CREATE SOURCE lake WITH ({place})"))
    write_deltalake(lake / "eu/sales", rows(1, 100), configuration=FED)
    write_deltalake(lake / "cities", rows(1, 10))
    (lake / "none").mkdir()
    (tmp_path / "PG_VERSION").touch()
    assert "folder of a Postgres server" in str(service.refused(f"CREATE SOURCE lake WITH ({place})"))
    (tmp_path / "PG_VERSION").unlink()
    assert service.sql("SHOW SOURCES") == []
    made = service.post("/v1/sources", {"name": "lake", "options": {"connector": "deltalake", "location": str(lake)}})
    assert (made["options"]["location"], made["slot"], made["tables"]) == (str(lake), None, [])
    assert service.run(f"CREATE SOURCE IF NOT EXISTS lake WITH ({place})")["notices"]
    assert "source with name" in str(service.refused(f"CREATE SOURCE lake WITH ({place})"))
    for path, why in {
        "none": "there is no Delta table",
        "gone": "there is no Delta table",
        "../lake/cities": "is no path below",
        "/etc": "is no path below",
    }.items():
        assert why in str(service.refused(f"CREATE TABLE t {KEYED} FROM lake TABLE '{path}'"))
    assert "needs a PRIMARY KEY" in str(service.refused("CREATE TABLE t (*) FROM lake TABLE 'cities'"))
    snapshot = "CREATE TABLE t (*, PRIMARY KEY (id)) WITH (snapshot = false) FROM lake TABLE 'cities'"
    assert "is for tables that follow an external database" in str(service.refused(snapshot))
    using = f"CREATE TABLE t {KEYED} USING delta LOCATION '{tmp_path}/t' FROM lake TABLE 'cities'"
    assert "the rows are in lake already" in str(service.refused(using))
    service.run(f"CREATE TABLE sales {KEYED} FROM lake TABLE 'eu/sales'")
    service.run("CREATE TABLE cities (id bigint, city text, PRIMARY KEY (id)) FROM lake TABLE 'cities'")
    service.run(
        "CREATE MATERIALIZED VIEW counted AS SELECT city, count(*) AS n, sum(amount) AS a FROM sales GROUP BY city"
    )
    assert service.sql("SHOW SOURCES") == [["lake"]]
    assert "table sales, " in str(service.refused("DROP SOURCE lake"))
    assert service.get("/v1/sources/lake")["tables"][0] == {
        **service.get("/v1/sources/lake")["tables"][0],
        "name": "sales",
        "external": "eu/sales",
        "state": "following",
        "reason": None,
    }
    lake.rename(tmp_path / "away")

    def waits() -> str | None:
        found = service.get("/v1/jobs/sales")["job"]["waiting"]
        return None if found is None else found["since"]

    since = until(waits, what=service.log_tail)
    generation = service.graph()["generation"]
    service.kill_worker()
    service.until_recovered(generation)
    # The worker that comes next does not know yet whether it is away.
    shown = service.get("/v1/jobs/sales")["job"]
    assert "is tried again by itself: its Delta table is away" in shown["waiting"]["text"]
    assert (shown["state"], shown["waiting"]["reason"], shown["waiting"]["since"]) == ("Created", "source", since)
    assert service.get("/v1/sources/lake")["tables"][0]["state"] == "waiting"
    assert '"counted" is stale since' in str(service.run("SELECT * FROM counted")["notices"])
    (tmp_path / "away").rename(lake)
    write_deltalake(lake / "eu/sales", rows(200, 10), mode="append")
    until(lambda: waits() is None, what=service.log_tail)
    until(lambda: service.value("SELECT sum(n) FROM counted") == "110", what=service.log_tail)
    assert service.run("SELECT * FROM counted")["notices"] == []
    service.run("DROP SOURCE lake CASCADE")
    assert service.sql("SHOW SOURCES") + service.sql("SHOW TABLES") == []
    assert len(DeltaTable(lake / "cities").to_pyarrow_table()) == 10


def test_the_secret_of_a_place_is_that_of_its_tables_and_is_shown_nowhere(service: Service) -> None:
    with object_store() as address:
        lake = bucket(address)
        files = Files.of(place_of({**lake.options, "location": lake.location}))
        files.put("drops/events/a.parquet", parquet(rows(1, 40)))
        write_deltalake(f"{lake.location}/sales", rows(1, 30), storage_options=lake.storage)
        service.run(f"CREATE SECRET lake_key WITH (backend = 'meta') AS '{SECRET}'")
        reached = f"s3.endpoint = '{address}', s3.access.key = 'writer', s3.secret.key = secret lake_key"
        service.run(f"CREATE SOURCE lake WITH (connector = 'deltalake', location = '{lake.location}', {reached})")
        made = {
            "name": "drops",
            "options": {
                "connector": "file",
                "location": f"{lake.location}/drops",
                "s3.endpoint": address,
                "s3.access.key": "writer",
            },
            "secrets": {"s3.secret.key": "lake_key"},
        }
        service.post("/v1/sources", made)
        assert "it is used by drops, lake" in str(service.refused("DROP SECRET lake_key"))
        service.run(f"CREATE TABLE sales {KEYED} FROM lake TABLE 'sales'")
        service.run(f"CREATE TABLE events {KEYED} FROM drops TABLE 'events'")
        service.run(
            "CREATE MATERIALIZED VIEW paired AS SELECT e.id, s.amount FROM events e JOIN sales s ON s.id = e.id"
        )
        assert service.value("SELECT count(*) FROM paired") == 30
        files.put("drops/events/b.parquet", parquet(rows(100, 10)))
        until(lambda: service.value("SELECT count(*) FROM events") == 50, what=service.log_tail)
        shown = [
            service.get("/v1/sources"),
            service.get("/v1/relations"),
            service.sql("SELECT * FROM rw_catalog.rw_sources"),
            service.sql("SHOW CREATE SOURCE drops"),
            service.get("/v1/audit", limit=100),
        ]
        assert SECRET not in repr(shown)
        assert "secret lake_key" in repr(shown)
        assert SECRET not in service.log.read_text()
        service.run("DROP SOURCE lake CASCADE")
        service.run("DROP SOURCE drops CASCADE")


def parquet(table: pa.Table) -> bytes:
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream)
    return stream.getvalue().to_pybytes()
