"""Scenarios of the reference for tables that follow an external Postgres: their twins of those for views.

Such a table can be read, and is created, from the beginning on: what ends it while its history is read is a drop.
"""

from collections.abc import Callable

import pytest

from tests.support.production import External, source, until_backfilled
from tests.support.scenarios import goes_on_over_a_kill, recovered
from tests.support.service import ProblemError, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

OPTIONS = {"v1": "", "v2": "backfill.parallelism = 2, backfill.num_rows_per_split = 100, "}
"""One ordered reader, and splits that two actors read."""


def external_table(service: Service, external: External, name: str, rows: int) -> None:
    """T(n), outside: a table with the integers from 1 to n."""
    fill = f"insert into {name} select generate_series(1, {rows})"
    # Counted by the statistics there, as all that is not counted row by row.
    external.run(f"create table {name} (v int primary key)", fill, f"analyze {name}")
    service.run(source(external))


def follow(service: Service, name: str, *, rate: int) -> dict[str, int]:
    """Follow the external table by either kind of reader; return the job of each."""
    for kind, options in OPTIONS.items():
        service.run(
            f"CREATE TABLE {name}_{kind} (*) WITH ({options}backfill_rate_limit = {rate}) FROM pg TABLE '{name}'"
        )
    return {f"{name}_{kind}": service.job(f"{name}_{kind}") for kind in OPTIONS}


def drop(service: Service, external: External, names: dict[str, int]) -> None:
    """Drop tables; afterwards nothing of them is listed or published, and what is there is the source's alone."""
    for name in names:
        service.run(f"DROP TABLE {name}")
    assert service.progress() == []
    assert service.sql("SELECT * FROM rw_catalog.rw_cdc_progress") == []
    until(lambda: not external.published(), what="no table is published")


def until_read(service: Service, jobs: dict[str, int], above: int = 0) -> None:
    for job in jobs.values():
        service.until_rows(job, above)


@pytest.mark.soak
@pytest.mark.parametrize("disturb", [None, recovered], ids=["at once", "after a recovery"])
def test_dropping_a_table_whose_history_is_read_frees_its_name(
    service: Service, external: External, disturb: Callable[[Service], None] | None
) -> None:
    """Scenario 10."""
    external_table(service, external, "t10", 1_000)
    jobs = follow(service, "t10", rate=1)
    until_read(service, jobs)
    if disturb is not None:
        disturb(service)
    drop(service, external, jobs)
    jobs = follow(service, "t10", rate=1_000_000)
    for name in jobs:
        until_backfilled(service, name)
    service.flush()
    assert [service.value(f"SELECT count(*) FROM {name}") for name in jobs] == [1_000, 1_000]


def test_a_limit_of_zero_reads_nothing_until_it_is_raised(service: Service, external: External) -> None:
    """Scenario 11."""
    external_table(service, external, "t11", 1)
    jobs = follow(service, "t11", rate=0)
    for _ in range(4):
        service.flush()
    for progress in service.progress():
        assert (progress["progress"], progress["rows"]) == ("0.00% (0/1)", 0)
        assert progress["waiting_for"] == "backfill_rate_limit is 0"
    for name in jobs:
        service.run(f"ALTER TABLE {name} SET BACKFILL_RATE_LIMIT TO 1")
    for name in jobs:
        until_backfilled(service, name)
        service.flush()
        assert service.sql(f"SELECT v FROM {name}") == [[1]]


@pytest.mark.soak
def test_progress_goes_on_where_it_was_when_the_worker_is_killed(service: Service, external: External) -> None:
    """Scenario 19; I6."""
    external_table(service, external, "t19", 1_000)
    jobs = follow(service, "t19", rate=1)
    until_read(service, jobs, 4)
    goes_on_over_a_kill(service, jobs, lambda _name, text: text, actors=2)


@pytest.mark.soak
def test_a_table_is_dropped_again_and_again(service: Service, external: External) -> None:
    """Scenario 49: also after a recovery, and while no worker lives. A cancel is for what is not created yet."""
    external_table(service, external, "t49", 500)
    for disturb in (None, None, None, recovered, Service.kill_worker):
        jobs = follow(service, "t49", rate=1)
        until_read(service, jobs)
        assert service.sql(f"CANCEL JOBS {', '.join(map(str, jobs.values()))}") == []
        if disturb is not None:
            disturb(service)
        drop(service, external, jobs)
        with pytest.raises(ProblemError, match="does not exist"):
            service.run("DROP TABLE t49_v1")
    jobs = follow(service, "t49", rate=1_000_000)
    for name in jobs:
        until_backfilled(service, name)
    service.flush()
    assert [service.value(f"SELECT count(*) FROM {name}") for name in jobs] == [500, 500]
