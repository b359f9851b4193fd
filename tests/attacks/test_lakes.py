"""Targets and tables in a lake that would harm the server, or grow without end."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.service import Service

pytestmark = pytest.mark.e2e


def sink(name: str, source: str, location: object) -> str:
    with_ = f"WITH (connector = 'deltalake', location = '{location}', type = 'append-only', force_append_only = 'true')"
    return f"CREATE SINK {name} {source} {with_}"


def test_i13_no_table_lies_in_the_folder_of_a_postgres_server(service: Service, tmp_path: Path) -> None:
    """A folder in `pg_replslot` keeps Postgres from starting ever again."""
    service.run("CREATE TABLE dd (id int PRIMARY KEY)")
    cluster = next(service.data_dir.glob("**/PG_VERSION")).parent
    pid = (cluster / "postmaster.pid").read_text().splitlines()[0]
    link = tmp_path / "link"
    link.symlink_to(cluster)
    places = (cluster / "pg_replslot/evil", f"/proc/{pid}/cwd/pg_replslot/evil", link / "base/1/evil", "/etc/evil")
    for place in (*places, service.data_dir / "evil"):
        for text in (
            sink("s", "FROM dd", place),
            f"CREATE TABLE t (*, PRIMARY KEY (id)) WITH (connector = 'deltalake', location = '{place}')",
            f"CREATE MATERIALIZED VIEW v USING delta LOCATION '{place}' AS SELECT id FROM dd",
        ):
            said = str(service.refused(text))
            assert "in a folder of the system" in said or "in the folder of a Postgres server" in said, text
    assert not list((cluster / "pg_replslot").iterdir())


def test_i13_a_table_in_a_lake_does_not_feed_itself(service: Service, tmp_path: Path) -> None:
    """It would grow eightfold with each commit, until the worker has no memory left."""
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        write_deltalake(place, pa.table({"id": [1, 2], "v": ["a", "b"]}))
    for name, place in (("lp", first), ("mp", second)):
        service.run(f"CREATE TABLE {name} (*, PRIMARY KEY (id)) WITH (connector = 'deltalake', location = '{place}')")
    service.run("CREATE MATERIALIZED VIEW above AS SELECT id + 100 AS id, v FROM lp")
    for source in ("FROM lp", "FROM above", "AS SELECT id + 7 AS id, v FROM lp UNION ALL SELECT id, v FROM mp"):
        assert "would feed itself" in str(service.refused(sink("s", source, f"{tmp_path}/./first/")))
    service.run(sink("s1", "FROM above", second))
    assert "would feed itself" in str(service.refused(sink("s2", "FROM mp", first)))
    service.run("DROP SINK s1")
    service.run(sink("s2", "FROM mp", first))


def test_i13_a_target_takes_no_place_of_another(service: Service, tmp_path: Path) -> None:
    """PURGE of a sink in an empty folder removed the files that a table took from there, or what another sink wrote."""
    drop, appended = tmp_path / "drop", tmp_path / "appended"
    drop.mkdir()
    service.run(f"CREATE TABLE files (id bigint, PRIMARY KEY (id)) WITH (connector = 'file', location = '{drop}')")
    service.run("CREATE TABLE d (id bigint PRIMARY KEY)")
    service.run(sink("first", "FROM d", appended))
    for location, why in ((drop, "a table takes the files"), (appended, "that of another view or sink")):
        view = f"CREATE MATERIALIZED VIEW v USING delta LOCATION '{location}' AS SELECT id FROM d"
        assert why in str(service.refused(view))
    assert "a table takes the files" in str(service.refused(sink("s", "FROM d", drop)))
    service.run(sink("second", "FROM d", appended))
    assert "another table lies at" in str(service.refused("DROP SINK second PURGE"))
    service.run("DROP SINK first")
    assert "may have rows of other writers" in str(service.run("DROP SINK second PURGE")["notices"])
    assert not [*drop.iterdir()]
