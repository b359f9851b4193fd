"""Two services on one database: a follower is ready and takes reads and writes, and becomes the leader at once."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.postgres import fresh_database
from tests.support.service import Service, data_directory
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.own_service]


@pytest.fixture
def pair(postgres_url: str) -> Iterator[tuple[Service, Service]]:
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(postgres_url))
        directory = stack.enter_context(data_directory())
        first, second = (
            Service(directory.with_name(f"service-{number}"), {"TIDEFILL_DATABASE_URL": url}) for number in (1, 2)
        )
        for service in (first, second):
            stack.callback(service.clear)
            service.start()
        yield first, second


@pytest.mark.soak
def test_i3_every_replica_serves_and_the_lease_moves(pair: tuple[Service, Service]) -> None:
    leader, follower = pair
    assert leader.leads()
    assert not follower.leads()
    follower.run("CREATE TABLE t (v int PRIMARY KEY)")
    leader.run("INSERT INTO t VALUES (1)")
    follower.run("CREATE MATERIALIZED VIEW m AS SELECT v, v + 1 AS w FROM t")
    follower.run("INSERT INTO t VALUES (2)")
    assert follower.sql("SELECT w FROM m ORDER BY w") == [[2], [3]]

    # A leader that is asked to resign does not gain the lease back before the other has tried.
    answer = follower.http.post("/v1/leader/resign", headers={"Idempotency-Key": "one"})
    assert answer.status_code == 200, answer.text
    until(follower.leads, what="the follower leads")
    until(lambda: not leader.leads(), what="the leader follows")
    leader.wait_ready()
    leader.run("INSERT INTO t VALUES (3)")

    leader, follower = follower, leader
    leader.kill()
    until(follower.leads, what="the other service leads after a crash")
    follower.wait_ready()
    follower.run("INSERT INTO t VALUES (4)")
    assert follower.sql("SELECT w FROM m ORDER BY w") == [[2], [3], [4], [5]]

    # Amid an upgrade: a later release has expanded the schema, and one of this release restarts.
    with follower.store() as connection:
        connection.execute("alter table tidefill.graph add column of_a_later_release text")
        connection.execute("update tidefill.alembic_version set version_num = '9998'")
    leader.start()
    leader.run("INSERT INTO t VALUES (5)")
    assert follower.sql("SELECT max(w) FROM m") == [[6]]
