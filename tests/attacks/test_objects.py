"""Objects that a user made beside tidefill's, and readers that hold its relations for long."""

import pytest

from tests.support.bystander import Bystander
from tests.support.service import ProblemError, Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


def test_c5_a_name_that_a_user_takes_meanwhile_stops_no_publication(service: Service, bystander: Bystander) -> None:
    service.run("CREATE TABLE a (id bigint PRIMARY KEY)")
    service.run("INSERT INTO a SELECT g FROM generate_series(1, 1000) g")
    slow = "CREATE MATERIALIZED VIEW slow WITH (backfill_rate_limit = 1) AS SELECT id FROM a"
    service.run(slow, background_ddl="true")
    job = service.job("slow")
    with service.store() as owner:
        owner.execute("create table public.slow (id int)")
        with bystander.unharmed():
            service.limit(job, None)
            until(lambda: "already exists" in str(service.detail(job)["job"]["waiting"]), what="the job says why")
        owner.execute("drop table public.slow")
    service.until_created("slow")
    assert service.value("SELECT count(*) FROM slow") == 1000


def test_c9_a_users_view_upon_a_table_stops_no_create(service: Service, bystander: Bystander) -> None:
    service.run("CREATE TABLE b (id bigint PRIMARY KEY)")
    with service.store() as owner:
        owner.execute("create view public.mine as select * from public.b")
        try:
            with bystander.unharmed():
                with pytest.raises(ProblemError, match="mine"):
                    service.run("DROP TABLE b")
                service.run("CREATE TABLE c (id bigint PRIMARY KEY)")
        finally:
            owner.execute("drop view public.mine")
    service.run("DROP TABLE b")


@pytest.mark.soak
def test_c10_relations_that_a_reader_holds_slow_no_barrier(service: Service, bystander: Bystander) -> None:
    names = [f"held{number}" for number in range(15)]
    for name in names:
        service.run(f"CREATE TABLE {name} (id bigint PRIMARY KEY)")
    with service.store() as reader, reader.transaction():
        for name in names:
            reader.execute(f"select * from public.{name}".encode())
        with bystander.unharmed():
            drops = [service.later(f"DROP TABLE {name}") for name in names]
            service.run("CREATE TABLE again (id bigint PRIMARY KEY)")
    for drop in drops:
        drop.result()
