"""Whoever is no longer who they were writes nothing: a leader that slept through its deposition, a worker that slept
through its replacement (I7). Both are stopped by SIGSTOP and wake by SIGCONT; what ends their leases meanwhile is the
test, which has no time to wait.
"""

import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from service.protocol.ids import WorkerId
from service.protocol.relation import ALIVE
from tests.support.faulty_service import FAULT, order_fault
from tests.support.postgres import fresh_database
from tests.support.scripted_worker import ScriptedWorker
from tests.support.service import FAULTY, Service, data_directory
from tests.support.state_store_locks import writers_held
from tests.support.waiting import Repeating, until
from tests.support.worker_process import WorkerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.own_service, pytest.mark.arrangement]

WATCH = """
create schema watch;
create table watch.written (id bigserial, who name default session_user, what text);
create function watch.row_written() returns trigger language plpgsql security definer as $$ begin
  insert into watch.written (what) values (tg_table_schema || '.' || tg_table_name || ' ' || tg_op);
  return null;
end $$;
create function watch.ddl_run() returns event_trigger language plpgsql security definer as $$ begin
  insert into watch.written (what) values (tg_tag);
end $$;
do $$ declare name text; begin
  for name in select format('%I.%I', schemaname, tablename) from pg_tables where schemaname in ('tidefill', 'state')
  loop
    execute format('create trigger watched after insert or update or delete on %s'
                   ' for each row execute function watch.row_written()', name);
  end loop;
end $$;
create event trigger watched on ddl_command_end execute function watch.ddl_run();
"""
"""Every row and every command that changes something is put down with the login it came from."""


@dataclass
class Pair:
    """Two services on one database, each with a login of its own to tell its writes by, and no worker of their own."""

    services: tuple[Service, Service]
    workers: Iterator[int] = field(default_factory=count)

    @property
    def leader(self) -> Service:
        return self.services[not self.services[0].leads()]

    @property
    def follower(self) -> Service:
        return self.services[self.services[0].leads()]

    @contextmanager
    def served_by(self, service: Service) -> Generator[None]:
        """Run a worker that reports nothing, at this service."""
        service.expire("worker")
        worker = ScriptedWorker(service, WorkerId(f"worker-{next(self.workers)}"))
        with worker, Repeating(lambda _: worker.pass_one()):
            yield


@pytest.fixture(scope="module")
def pair(postgres_url: str) -> Iterator[Pair]:
    with ExitStack() as stack:
        database = make_url(stack.enter_context(fresh_database(postgres_url)))
        directory = stack.enter_context(data_directory())
        fault = {FAULT: str(directory.parent / "fault"), "TIDEFILL_LAUNCHER": "none"}
        logins = [login(database.render_as_string(hide_password=False), name) for name in ("one", "other")]
        first, second = (
            Service(directory.with_name(f"service-{number}"), {**fault, "TIDEFILL_DATABASE_URL": url}, command=FAULTY)
            for number, url in enumerate(logins)
        )
        for service in (first, second):
            stack.callback(service.clear)
            service.start(ready=False)
            until(service.is_alive, what=service.log_tail)
            until(first.leads, what="the first service leads")
        pair = Pair((first, second))
        with pair.served_by(second):
            first.run("CREATE TABLE t (v int PRIMARY KEY)")
        with first.store() as connection:
            connection.execute(WATCH)
        yield pair


def login(database_url: str, name: str) -> str:
    """Return the database's URL with a new superuser."""
    url = make_url(database_url)
    role = f"{url.database}_{name}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("create role {} login superuser password 'x'").format(sql.Identifier(role)))
    return url.set(username=role, password="x").render_as_string(hide_password=False)


@pytest.mark.postgres
@pytest.mark.parametrize(
    "point",
    [
        "before_commit",
        pytest.param("before_roll_back", marks=pytest.mark.soak),
        pytest.param("after_roll_back", marks=pytest.mark.soak),
    ],
)
def test_a_deposed_leader_writes_nothing(pair: Pair, point: str) -> None:
    """It sleeps inside the transaction that commits, between fencing and rolling back, and before it records that."""
    old, new = pair.leader, pair.follower
    shown: list[tuple[int, int]] = []
    with pair.served_by(new), Repeating(lambda _: shown.append(published(new))):
        new.flush()
        _, term = published(new)
        put_to_sleep(old, new, point)
        take_over(old, new, inside_transaction=point == "before_commit")
        until(lambda: published(new)[1] > term, what="the new leader has published")
        (table,) = new.get("/v1/relations")["items"]
        epoch = new.flush()
        store_row(new, table["id"], epoch)
        ((before,),) = new.stored("select max(id) from watch.written")
        wake(old)
        for _ in range(2):
            new.flush()
        written = new.stored(f"select distinct who, what from watch.written where id > {before}")
        assert {who for who, _ in written} == {make_url(new.database_url()).username}, written
        assert shown == sorted(shown), "an epoch or a term went back"
        assert new.stored(f"select v from state.t_{table['id']} where _from = {epoch}") == [(1,)]


def published(service: Service) -> tuple[int, int]:
    """Return the epoch that readers see, and the term that published it."""
    ((epoch, term),) = service.stored("select epoch, term from state.published where graph = 1")
    return epoch, term


def put_to_sleep(leader: Service, other: Service, point: str) -> None:
    order_fault(Path(leader.environment[FAULT]), point, signal.SIGSTOP)
    if point != "before_commit":
        other.post("/v1/recover")
    until(leader.is_stopped, what="the leader sleeps")


def take_over(old: Service, new: Service, *, inside_transaction: bool) -> None:
    """Let the lease run out. A transaction that asserted its term keeps the next leader away until it is over."""
    if not inside_transaction:
        # A chore may have been in one.
        end_open_transactions(old)
    # A renewal that was not committed keeps this from the lease, too.
    expired = new.calls.submit(new.expire, "leader")
    if inside_transaction:
        until(lambda: new.leads() or waits_for_the_lease(new), what="the other service wants to lead")
        assert not new.leads(), "a transaction of the old leader is open"
        end_open_transactions(old)
    expired.result()
    until(new.leads, what="the other service leads")


def waits_for_the_lease(service: Service) -> bool:
    waiting = (
        "select from pg_stat_activity where usename = current_user and wait_event_type = 'Lock'"
        " and query ilike 'update%leader_lease%'"
    )
    return service.stored(waiting) != []


def end_open_transactions(service: Service) -> None:
    """What the server does by itself to a session that is idle in a transaction for a minute."""
    service.stored(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        " where usename = current_user and state = 'idle in transaction' and pid <> pg_backend_pid()"
    )


def store_row(service: Service, relation: int, epoch: int) -> None:
    """Store a row as a worker of a committed epoch does."""
    with service.store() as connection:
        connection.execute(f"insert into state.t_{relation} values (0, 1, {epoch}, {ALIVE})".encode())


def wake(service: Service) -> None:
    """Let a service that slept go on, until it has ended what it was about to do and knows that it leads no more."""
    said = len(service.log.read_text())
    service.resume()
    # What it was about to do is refused, or done: both are logged.
    until(lambda: len(service.log.read_text()) > said, what=service.log_tail)
    until(lambda: not service.leads(), what="the old leader knows")


@pytest.mark.soak
def test_a_worker_that_was_replaced_leaves_no_row(workerless: Service) -> None:
    """The first worker sleeps before its epoch, the second before its commit; of those alive the first by name runs."""
    service, directory = workerless, workerless.data_dir.parent
    first, second = (WorkerProcess(service, directory / name, name) for name in ("worker-1", "worker-2"))
    third = ScriptedWorker(service, WorkerId("worker-3"))
    with first, second:
        until(lambda: first.is_registered and second.is_registered, what="the workers")
        service.wait_ready()
        wakes_before_its_epoch(service, first)
        with third, Repeating(lambda _: third.pass_one()):
            wakes_before_its_commit(service, second)


def wakes_before_its_epoch(service: Service, worker: WorkerProcess) -> None:
    """Its barrier is received and nothing begun: the sessions that a recovery could end are yet to be opened."""
    service.run("CREATE TABLE late (v int PRIMARY KEY)")
    # Whichever worker was ready first has run until now.
    recover(service)
    fault = Path(service.environment[FAULT])
    order_fault(fault, "statements_given", signal.SIGSTOP, session=worker.process.pid)
    inserted = service.later("INSERT INTO late VALUES (1), (2), (3)")
    until(lambda: not fault.exists(), what="the barrier that carries the insert")
    epoch = in_flight(service)
    assert epoch is not None
    replace_worker(service)
    assert inserted.result()["tag"] == "INSERT 0 3"
    wake_worker(service, worker, epoch)
    assert "is over" in worker.log_text(), "it did not try"
    assert service.sql("SELECT v FROM late ORDER BY v") == [[1], [2], [3]]


def wakes_before_its_commit(service: Service, worker: WorkerProcess) -> None:
    """Its rows are written and the fence is passed."""
    service.run("ALTER SYSTEM SET barrier_interval_ms = 500")
    service.run("INSERT INTO late SELECT * FROM generate_series(1, 5000)")
    create = "CREATE MATERIALIZED VIEW copied WITH (backfill_rate_limit = 200) AS SELECT v FROM late"
    service.run(create, background_ddl="true")
    service.until_rows(service.job("copied"), 0)
    with writers_held(service) as writers:
        worker.signal(signal.SIGSTOP)
    until(lambda: idle_in_transaction(service, writers), what="the writers passed the fence and did not commit")
    epoch = in_flight(service)
    assert epoch is not None
    replace_worker(service)
    wake_worker(service, worker, epoch)


def wake_worker(service: Service, worker: WorkerProcess, epoch: str) -> None:
    """Let a worker that was replaced go on until it ends; nothing that it wrote in its last epoch is there."""
    worker.signal(signal.SIGCONT)
    assert worker.process.wait(timeout=300) == 0, worker.log_text()
    for relation in service.get("/v1/relations")["items"]:
        left = f"select count(*) from state.t_{relation['id']} where _from = {epoch} or _to = {epoch}"
        assert service.stored(left) == [(0,)], relation["name"]


def recover(service: Service) -> None:
    generation = service.graph()["generation"]
    service.run("RECOVER")
    service.until_recovered(generation)


def replace_worker(service: Service) -> None:
    """Let the worker's lease run out; the one that waits takes its place."""
    generation = service.graph()["generation"]
    service.expire("worker")
    service.until_recovered(generation)


def in_flight(service: Service) -> str | None:
    """Return the epoch that a worker has yet to answer."""
    newest = service.barriers(limit=1)[-1]
    return newest["epoch"] if newest["collected_at"] is None else None


def idle_in_transaction(service: Service, writers: list[int]) -> bool:
    pids = ", ".join(str(writer) for writer in writers)
    asleep = f"select count(*) from pg_stat_activity where pid in ({pids}) and state = 'idle in transaction'"
    return service.stored(asleep) == [(len(writers),)]
