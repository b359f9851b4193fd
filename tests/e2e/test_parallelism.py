"""How many actors a job has while it is being created and afterwards: the reference's scenarios of scaling."""

from collections.abc import Iterable

import pytest

from tests.e2e.test_clean_cancel import footprint, no_staging_tables
from tests.support.scenarios import RESCALED, drop, finish, table, until_all_read, views
from tests.support.service import Service
from tests.support.waiting import until
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.e2e

SPECIFIED = "SELECT parallelism FROM rw_catalog.rw_streaming_jobs WHERE name = '{name}'"
ACTORS = (
    "SELECT f.parallelism FROM rw_catalog.rw_fragments f JOIN rw_catalog.rw_streaming_jobs j ON j.table_id = f.table_id"
    " WHERE j.name = '{name}' AND 'STREAM_SCAN' = ANY (f.flags)"
)


def parallelism(service: Service, name: str) -> tuple[str, int]:
    """Return what is asked for a view just now, and how many actors its scan has."""
    return service.value(SPECIFIED.format(name=name)), service.value(ACTORS.format(name=name))


def until_parallel(service: Service, names: Iterable[str], asked: str, actors: int) -> None:
    """Wait until each of the views has so many actors: they change at a barrier after the reason for it."""
    wanted = dict.fromkeys(names, (asked, actors))

    def seen() -> dict[str, tuple[str, int]]:
        return {name: parallelism(service, name) for name in wanted}

    until(lambda: seen() == wanted, what=seen)


@pytest.mark.soak
def test_a_backfill_has_a_parallelism_of_its_own(service: Service) -> None:
    """Scenario 59: the one of the backfill wins over that of the kind, and this over the generic one."""
    table(service, "t59", 100)
    asked = {"streaming_parallelism": "3", "streaming_parallelism_for_materialized_view": "2"}
    query = "SELECT * FROM t59"
    own, cleared = (
        views(service, name, query, rate=0, strategies=RESCALED, **asked, streaming_parallelism_for_backfill=backfill)
        for name, backfill in (("own", "1"), ("cleared", "default"))
    )
    assert {parallelism(service, name) for name in own} == {("fixed(1)", 1)}
    assert {parallelism(service, name) for name in cleared} == {("fixed(2)", 2)}
    assert finish(service, own | cleared, query) == 100
    until_parallel(service, own | cleared, "fixed(2)", 2)


@pytest.mark.soak
def test_the_positions_of_a_finished_job_outlive_its_actors(service: Service) -> None:
    """Scenario 66: one for each vnode, completed, without a key."""
    table(service, "t66", 1_000)
    jobs = views(service, "m66", "SELECT * FROM t66", strategies=RESCALED)
    service.run("WAIT")
    for actors in (1, 6):
        for name, job in jobs.items():
            service.run(f"ALTER MATERIALIZED VIEW {name} SET PARALLELISM = {actors}")
            (scan,) = (one for one in service.detail(job)["fragments"] if one["scan_type"])
            positions = service.get(f"/v1/fragments/{scan['id']}/vnodes", limit=1000)["items"]
            assert [one["vnode"] for one in positions] == list(range(256))
            assert {(one["state"], one["key"]) for one in positions} == {("completed", None)}
            assert sum(one["rows"] for one in positions) == 1_000
            assert len({one["actor"] for one in positions}) == actors
    service.run("INSERT INTO t66 SELECT * FROM generate_series(1001, 1100)")
    assert finish(service, jobs, "SELECT * FROM t66") == 1_100


@pytest.mark.soak
def test_actors_follow_the_slots_of_the_worker(workerless: Service) -> None:
    """Scenario 64: a job that began on a small worker grows with the next; 57; and 54 in the end."""
    service, directory = workerless, workerless.data_dir.parent
    with WorkerProcess(service, directory / "small", "small", slots=1):
        service.wait_ready()
        table(service, "t64", 30)
        until(lambda: no_staging_tables(service), what="nothing is staged")
        before = footprint(service)
        began = views(service, "m64", "SELECT * FROM t64", rate=1, strategies=RESCALED, streaming_parallelism="default")
        until_all_read(service)
        assert {parallelism(service, name) for name in began} == {("adaptive", 1)}
        generation = service.graph()["generation"]
    service.expire("worker")
    with WorkerProcess(service, directory / "large", "large", slots=3):
        service.until_recovered(generation)
        until_parallel(service, ["m64_arrangement"], "adaptive", 3)
        assert parallelism(service, "m64_snapshot") == ("adaptive", 1), "it reads with the actors that it began with"
        assert finish(service, began, "SELECT * FROM t64") == 30
        until_parallel(service, began, "adaptive", 3)
        service.run("INSERT INTO t64 SELECT * FROM generate_series(31, 60)")
        assert finish(service, began, "SELECT * FROM t64") == 60
        until(lambda: no_staging_tables(service), what="nothing is staged")
        left = began | what_is_asked_for_the_backfill_ends_with_it(service)
    service.expire("worker")
    service.stop()
    service.start(ready=False)
    until(service.leads, what=service.log_tail)
    assert service.workers() == []
    assert len(service.progress()) == 2
    drop(service, left)
    assert footprint(service) == before


def what_is_asked_for_the_backfill_ends_with_it(service: Service) -> dict[str, int]:
    """Scenario 57, on three slots: two actors until it is created. Return the views, those of them unfinished that were
    created when nothing was asked for any more.
    """
    own = unfinished(service, "own", streaming_parallelism="adaptive", streaming_parallelism_for_backfill="2")
    assert {parallelism(service, name) for name in own} == {("fixed(2)", 2)}
    finish(service, own, "SELECT * FROM t64")
    until_parallel(service, own, "adaptive", 3)
    cleared = unfinished(service, "cleared", streaming_parallelism="adaptive")
    assert {parallelism(service, name) for name in cleared} == {("adaptive", 3)}
    return own | cleared


def unfinished(service: Service, name: str, **session: str) -> dict[str, int]:
    """Create views of a table that do not end by themselves."""
    return views(service, name, "SELECT * FROM t64", rate=0, strategies=RESCALED, **session)
