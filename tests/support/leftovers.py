"""What must not be there when nothing is being created and nobody writes (I9): of views that are gone, of processes
that were killed, of epochs that never committed.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import session_of, working_in
from tests.support.service import Service
from tests.support.waiting import until

ALIVE = 2**63 - 1
NONE = {
    "graphs of snapshot jobs": "select id from tidefill.graph where id <> 1",
    "fences": "select graph from state.fence where graph <> 1",
    "publications": "select graph from state.published where graph <> 1",
    "horizons": "select graph from state.horizon where graph <> 1",
    "pins": "select * from state.pin",
    "snapshot jobs": "select job from tidefill.snapshot_backfill",
    "jobs that are neither there nor over": (
        "select id, relation, state from tidefill.job where state not in ('Created', 'Cancelled', 'Dropped')"
    ),
    "fragments without a relation": (
        "select f.id, f.job, j.state from tidefill.fragment f join tidefill.job j on j.id = f.job"
        " where j.state <> 'Created'"
    ),
    "names of what is gone": (
        "select r.id, r.name from tidefill.relation r join tidefill.job j on j.relation = r.id"
        " where j.state <> 'Created' and not r.dropped"
    ),
    "columns of what is gone": (
        "select c.relation, c.name from tidefill.relation_column c join tidefill.relation r on r.id = c.relation"
        " where r.dropped"
    ),
    "hidden relations of what is gone": (
        "select h.id, h.name from tidefill.relation h join tidefill.relation r on r.id = h.owner"
        " where r.dropped and not h.dropped"
    ),
    "removals": "select * from tidefill.cleanup",
    "commands": "select id, graph, mutation from tidefill.command where not done",
    "statements": "select id, body from tidefill.statement where finished_at is null",
    "staged statements": "select id from tidefill.statement where staging",
    "staging tables": "select tablename from pg_tables where schemaname = 'stage'",
    "sessions of workers of the past": (
        "select a.application_name from pg_stat_activity a where a.application_name ~ '^tidefill:[0-9]+:[0-9]+$'"
        " and a.application_name <> (select 'tidefill:1:' || generation from tidefill.graph where id = 1)"
    ),
    "transactions": (
        "select application_name, query from pg_stat_activity where pid <> pg_backend_pid()"
        " and now() - xact_start > interval '1 minute'"
    ),
}
"""Queries that have to give nothing."""
STORED = {
    "state": "select tablename from pg_tables where schemaname = 'state' and tablename ~ '^t_[0-9]+$'",
    "live": "select viewname from pg_views where schemaname = 'live'",
    "public": "select viewname from pg_views where schemaname = 'public'",
}


def assert_nothing_left(service: Service) -> None:
    """Assert it, once the chores are done that take their time."""
    until(lambda: not left(service), what=lambda: f"nothing is left: {left(service)}")


def left(service: Service) -> dict[str, object]:
    """Return what is left."""
    found: dict[str, object] = {what: rows for what, query in NONE.items() if (rows := service.stored(query))}
    relations = service.get("/v1/relations", limit=1000)["items"]
    stored = {kind: {name for (name,) in service.stored(query)} for kind, query in STORED.items()}
    hidden = service.stored("select id, name from tidefill.relation where owner is not null and not dropped")
    tables = {f"t_{one['id']}" for one in relations} | {f"t_{one}" for one, _ in hidden}
    names = {one["name"] for one in relations}
    views = {name for (name,) in service.sql("SELECT name FROM rw_catalog.rw_views")}
    for kind, wanted in (("state", tables), ("live", names | {name for _, name in hidden}), ("public", names | views)):
        if stored[kind] != wanted:
            found[kind] = sorted(stored[kind] ^ wanted)
    for table in stored["state"] & tables:
        if (ended := service.stored(f"select count(*) from state.{table} where _to < {ALIVE}")) != [(0,)]:
            found[f"versions of {table} that ended"] = ended
    return found


def assert_one_worker(service: Service) -> None:
    """Assert that of all workers that the service has started one is left."""
    until(lambda: not dict(_of_workers(service)), what=lambda: dict(_of_workers(service)))


def _of_workers(service: Service) -> Iterator[tuple[str, object]]:
    """Yield what is there of more than one worker."""
    homes = sorted((service.data_dir / "workers").iterdir())
    if len(homes) != 1:
        yield "homes of workers", homes
        return
    sessions = {session_of(pid) for pid in working_in(lambda where: where.parent == homes[0].resolve().parent)}
    if len(sessions) != 1:
        yield "workers", sessions


def temporary_files(directory: Path) -> list[str]:
    """Return the names of what is left in a directory of temporary files."""
    return sorted(found.name for found in directory.iterdir())
