"""Connectors, with real processes: datagen fills a table, blackhole takes the rows of a sink."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from service.protocol import datagen
from service.protocol.columns import Column, ColumnType
from tests.support.lakes import SECRET, bucket, object_store
from tests.support.service import ProblemError, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

ROWS = 1200
OPTIONS = {
    "fields.id.kind": "sequence",
    "fields.id.start": "1",
    "fields.id.end": str(ROWS),
    "fields.amount.min": "-5",
    "fields.amount.max": "5",
    "fields.name.length": "4",
    "datagen.rows.per.second": "300",
    "datagen.split.num": "3",
}
GENERATED = (
    "CREATE TABLE made (id bigint PRIMARY KEY, amount int, name text, at timestamptz) WITH (connector = 'datagen', "
    + ", ".join(f"{name} = '{value}'" for name, value in OPTIONS.items())
    + ")"
)


def expected() -> list[tuple[int, int, str]]:
    """Return what the rules say, in order."""
    columns = [
        Column(name=name, type=ColumnType.parse(kind))
        for name, kind in {"id": "bigint", "amount": "integer", "name": "text", "at": "timestamptz"}.items()
    ]
    rules = datagen.read(OPTIONS, columns)
    rows = [row for split in range(rules.splits) for row in rules.rows(split, 0, ROWS)]
    return sorted((int(id_ or 0), int(amount or 0), name or "") for id_, amount, name, _ in rows)


@pytest.mark.soak
def test_a_generated_table_is_its_rules_over_a_kill_and_a_pause(service: Service) -> None:
    """I3: what is made again after a recovery is the same. I4: a pause stops it."""
    service.run(GENERATED)
    service.run("CREATE MATERIALIZED VIEW signs AS SELECT id, sign(amount) AS sign FROM made")
    until(lambda: service.value("SELECT count(*) FROM made") > 100, what=service.log_tail)
    service.kill_worker()
    service.mutate({"type": "pause"})
    stood = service.value("SELECT count(*) FROM made")
    service.flush()
    service.flush()
    assert service.value("SELECT count(*) FROM made") == stood
    service.mutate({"type": "resume"})
    until(lambda: service.value("SELECT count(*) FROM made") == ROWS, what=service.log_tail)
    found = [tuple(row) for row in service.sql("SELECT id, amount, name FROM made ORDER BY id")]
    assert found == expected()
    service.assert_equal("signs", "SELECT id, sign(amount) AS sign FROM made")
    # A table with a connector takes rows of its users as well.
    service.run("INSERT INTO made VALUES (0, 7, 'mine', NULL)")
    assert service.value("SELECT name FROM made WHERE id = 0") == "mine"
    service.run("DROP TABLE made CASCADE")
    assert service.sql("SHOW TABLES") == []


def test_a_generated_key_that_no_index_takes_fails_its_own_table(service: Service) -> None:
    """I13: it was tried again for ever, and nobody else's rows were published."""
    generation = service.graph()["generation"]
    with suppress(ProblemError):  # it may have failed before the answer
        service.run("CREATE TABLE long (id text PRIMARY KEY) WITH (connector = 'datagen', fields.id.length = '10000')")
    service.until_recovered(generation)
    service.run("CREATE TABLE sound (id int PRIMARY KEY)")
    service.run("INSERT INTO sound VALUES (1)")
    assert "index row requires" in service.graph()["last_error"]
    assert service.graph()["generation"] == generation + 1


def test_a_sink_takes_history_and_changes_and_stores_nothing(service: Service) -> None:
    """I9 as well."""
    service.run("CREATE TABLE t (id bigint PRIMARY KEY, v int)")
    service.run("INSERT INTO t SELECT g, g % 10 FROM generate_series(1, 3000) g")
    service.run("CREATE SINK taken AS SELECT id, v FROM t WHERE v < 5 WITH (connector = 'blackhole')")
    service.run("CREATE SINK all_taken FROM t WITH (connector = 'blackhole', type = 'append-only')")
    assert delivered(service) == {"taken": 1500, "all_taken": 3000}
    service.run("UPDATE t SET v = 9 WHERE id = 1")
    service.run("DELETE FROM t WHERE id = 2")
    # The count is of the rows that the external system would have now.
    assert delivered(service) == {"taken": 1498, "all_taken": 2999}
    service.kill_worker()
    service.run("INSERT INTO t VALUES (5000, 1)")
    assert delivered(service) == {"taken": 1499, "all_taken": 3000}
    assert service.sql("SHOW SINKS") == [["taken"], ["all_taken"]]
    assert service.sql("SELECT name, connector FROM rw_catalog.rw_sinks ORDER BY id") == [
        ["taken", "blackhole"],
        ["all_taken", "blackhole"],
    ]
    job = service.job("taken")
    assert service.stored(f"SELECT to_regclass('state.t_{job}')") == [(None,)]
    refusal = service.refused("CREATE MATERIALIZED VIEW m AS SELECT * FROM taken")
    assert 'sink "taken" cannot be read: it stores no rows' in refusal.problem["detail"]
    assert "does not exist" in service.refused("SELECT * FROM taken").problem["detail"]
    assert "other objects depend on it" in service.refused("DROP TABLE t").problem["detail"]
    service.run("DROP SINK taken")
    service.run("DROP TABLE t CASCADE")
    assert service.sql("SHOW SINKS") == []


def in_delta(folder: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a Delta table, as a foreign reader sees them."""
    table = pa.table(DeltaTable(str(folder)).to_pyarrow_table())
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_i14_delta_tables_hold_a_view_and_a_log_over_kills(service: Service, tmp_path: Path) -> None:
    """I3, I9 and I10 as well: each change once, the database graph goes on, and a dropped sink leaves its rows."""
    service.run("CREATE TABLE t (id bigint PRIMARY KEY, v int, n numeric(10, 2), at timestamptz)")
    service.run("INSERT INTO t SELECT g, g % 10, g, '2026-01-01' FROM generate_series(1, 3000) g")
    service.run("CREATE MATERIALIZED VIEW m AS SELECT v, count(*) AS c, sum(id)::bigint AS s FROM t GROUP BY v")
    target = f"connector = 'deltalake', commit_interval = '100 ms', location = '{tmp_path}"
    grouped = "SELECT v, count(*) AS c, sum(id)::bigint AS s FROM t GROUP BY v"
    service.run(f"CREATE SINK groups AS {grouped} WITH ({target}/groups', type = 'upsert', primary_key = 'v')")
    service.run(f"CREATE SINK log AS SELECT id, n, at FROM t WITH ({target}/log', type = 'append-only')")
    until(lambda: len(in_delta(tmp_path / "log")) == 3000, what=service.log_tail)
    for round_ in range(3):
        first = 3001 + 10 * round_
        service.run(f"INSERT INTO t SELECT g, g % 10, g, NULL FROM generate_series({first}, {first + 9}) g")
        if round_ == 1:
            service.kill_worker()
    wanted = [tuple(row) for row in service.sql("SELECT v, c, s FROM m ORDER BY v")]
    until(lambda: in_delta(tmp_path / "groups") == wanted, what=service.log_tail)
    until(lambda: [row[0] for row in in_delta(tmp_path / "log")] == [*range(1, 3031)], what=service.log_tail)
    # A change that the log cannot take fails it alone, with the reason.
    service.run("DELETE FROM t WHERE v = 3")
    until(lambda: service.get("/v1/jobs/log")["job"]["state"] == "Failed", what=service.log_tail)
    assert "type 'upsert'" in service.get("/v1/jobs/log")["job"]["error"]
    wanted = [row for row in wanted if row[0] != 3]
    until(lambda: in_delta(tmp_path / "groups") == wanted, what=service.log_tail)
    service.run("DROP SINK groups")
    assert list((tmp_path / "groups" / "_tidefill").iterdir()) == []
    assert in_delta(tmp_path / "groups") == wanted


@pytest.mark.soak
def test_i14_a_delta_table_in_an_object_store_keeps_its_secret(service: Service) -> None:
    """I13 as well: a store that is away is said, and the sink goes on with the next value of its secret."""
    service.run("CREATE TABLE t (id bigint PRIMARY KEY, v int, day date)")
    service.run("INSERT INTO t SELECT g, g % 3, date '2026-01-01' + g % 2 FROM generate_series(1, 1000) g")
    with object_store() as address:
        lake = bucket(address)
        target = (
            f"connector = 'deltalake', location = '{lake.location}/t', partition_by = 'day',"
            f" commit_interval = '100 ms', s3.endpoint = '{address}', s3.access.key = 'writer', s3.secret.key = "
        )
        plain = service.refused(f"CREATE SINK s FROM t WITH ({target} '{SECRET}')").problem["detail"]
        assert "s3.secret.key = secret name" in plain
        assert (
            'secret "key" does not exist'
            in service.refused(f"CREATE SINK s FROM t WITH ({target} secret key)").problem["detail"]
        )
        service.run(f"CREATE SECRET key AS '{SECRET}'")
        service.run(f"CREATE SINK s FROM t WITH ({target} secret key)")
        assert "is used by s" in service.refused("DROP SECRET key").problem["detail"]
        service.run("UPDATE t SET v = 7 WHERE id <= 10")
        service.kill_worker()
        service.run("DELETE FROM t WHERE id > 900")
        wanted = [(1 + g, 7 if g < 10 else (1 + g) % 3) for g in range(900)]
        until(lambda: sorted((row["id"], row["v"]) for row in lake.rows()) == wanted, what=service.log_tail)
        assert lake.table().metadata().partition_columns == ["day"]
        shown = service.sql("SELECT name, connector, sink_type, location FROM rw_catalog.rw_sinks")
        assert shown == [["s", "deltalake", "upsert", f"{lake.location}/t"]]
        told = [service.sql("SHOW CREATE SINK s"), service.get("/v1/audit"), service.get("/v1/jobs/s")]
        assert SECRET not in f"{plain} {told} {service.log.read_text()}"
        for table in ("fragment", "event", "job", "relation", "audit_entry", "request"):
            stored = service.stored(f"SELECT count(*) FROM tidefill.{table} r WHERE r::text LIKE '%{SECRET}%'")
            assert stored == [(0,)], table
        service.run("DROP SINK s")
        service.run("DROP SECRET key")


def delivered(service: Service) -> dict[str, int]:
    """Return how many rows each sink has been given, less those that were taken back."""
    service.flush()
    return {name: service.get(f"/v1/relations/{name}")["key_count"] for name in ("taken", "all_taken")}


REFUSED: Final = {
    "CREATE SINK s FROM t WITH (connector = 'nowhere')": 'connector "nowhere" is not supported here',
    "CREATE SINK s FROM t WITH (type = 'x')": 'option "connector" is missing',
    "CREATE SINK s FROM t WITH (connector = 'blackhole', a = 1)": 'unknown option "a"',
    "CREATE SINK s AS SELECT * FROM t": "a sink names its connector",
    "CREATE TABLE g (id int) WITH (connector = 'kafka')": 'connector "kafka" is not supported here',
    "CREATE TABLE g (id int) WITH (a = 1)": 'unexpected options in WITH clause: ["a"]',
    "CREATE TABLE g (j jsonb) WITH (connector = 'datagen')": "datagen cannot make",
    "CREATE TABLE g (id int) WITH (connector = 'datagen', fields.x.kind = 'random')": 'there is no column "x"',
}


def test_what_no_connector_does_is_refused_in_words(service: Service, subtests: pytest.Subtests) -> None:
    service.run("CREATE TABLE t (id bigint PRIMARY KEY)")
    for text, reason in REFUSED.items():
        with subtests.test(text):
            assert reason in service.refused(text).problem["detail"]
