"""Any process may be killed at any instant: nothing is lost, nothing comes twice, and work goes on from the last
committed epoch (I1, I3, I6). SIGKILL everywhere.

The points are named: a worker's writer that holds its transaction with every row written, a leader between collect and
commit, between commit and publish, between publication and its record, between fence and roll back.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.faulty_service import FAULT, order_fault
from tests.support.service import FAULTY, Service, data_directory, running
from tests.support.state_store_locks import writers_held
from tests.support.storm_kills import server
from tests.support.workload import STRATEGIES, Workload, until_reading

pytestmark = [pytest.mark.e2e, pytest.mark.own_service]


@pytest.fixture(scope="module")
def killable() -> Iterator[Service]:
    """A service that the tests of this file kill; each leaves it running again."""
    with data_directory() as directory:
        fault = directory.parent / "fault"
        with running(Service(directory, {FAULT: str(fault)}, command=FAULTY)) as service:
            yield service


@pytest.fixture
def workload(killable: Service) -> Iterator[Workload]:
    """A view that is being built while its table changes."""
    killable.reset()
    killable.run("ALTER SYSTEM SET barrier_interval_ms = 500")
    work = Workload(killable, STRATEGIES)
    work.prepare()
    yield work
    if killable.process is not None and killable.process.poll() is not None:
        killable.restart()
    killable.reset()


def kill_jvm(service: Service) -> None:
    with writers_held(service):
        service.kill_jvm()


def kill_one_backend(service: Service) -> None:
    """Postgres ends every session and recovers by itself, as after any crash of one of its processes."""
    with writers_held(service) as writers:
        os.kill(writers[0], signal.SIGKILL)


def kill_postgres(service: Service) -> None:
    """The whole server, head first; the service starts it again."""
    with writers_held(service):
        end_server(service)


def kill_everything(service: Service) -> None:
    """Service, driver and server, as when a machine goes down."""
    with writers_held(service):
        driver = service.worker_pid()
        service.kill()
        os.kill(driver, signal.SIGKILL)
        end_server(service)
    service.restart()


def end_server(service: Service) -> None:
    for pid in server(service):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def die_at(point: str) -> Callable[[Service], None]:
    """Have the service kill itself at a named point, and start it again."""

    def kill(service: Service) -> None:
        order_fault(Path(service.environment[FAULT]), point)
        service.wait_killed()
        service.restart()

    kill.__name__ = point
    return kill


def die_in_recovery(service: Service) -> None:
    """The worker is killed, and the leader between fencing the state store and rolling it back."""
    order_fault(Path(service.environment[FAULT]), "before_roll_back")
    with writers_held(service):
        service.kill_worker()
    service.wait_killed()
    service.restart()


KILLS: dict[str, tuple[Callable[[Service], None], ...]] = {
    "a process": (kill_jvm, kill_one_backend),
    "a machine": (kill_postgres, kill_everything),
    "the leader before it commits": (die_at("before_commit"), die_in_recovery),
    "the leader in a recovery": (die_in_recovery,),
    "the leader before it publishes": (die_at("before_publish"),),
}
"""Those that differ most; `tests/soak/test_kill_storm.py` draws from all."""


IN_EVERY_RUN = "the leader in a recovery"


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(kills, id=name, marks=[] if name == IN_EVERY_RUN else [pytest.mark.soak])
        for name, kills in KILLS.items()
    ],
)
def test_nothing_is_lost_nor_twice(workload: Workload, kills: Sequence[Callable[[Service], None]]) -> None:
    """I1, I3, I6: the views equal their query in Postgres and verify; statements ran once."""
    service, abandoned = workload.service, set[int]()
    with workload.running():
        for kill in kills:
            rows = until_reading(workload, 500)
            before = service.graph()
            kill(service)
            service.wait_ready()
            service.until_recovered(before["generation"])
            abandoned |= assert_resumed(service, before, rows, workload.job)
            service.until_rows(workload.job, service.rows(workload.job))
    workload.finish()
    assert abandoned, "no epoch was under way"


def assert_resumed(service: Service, before: dict[str, object], rows: int, job: int) -> set[int]:
    """Work went on from the epoch that was committed, not from the start; of abandoned ones, which are returned,
    nothing is left.
    """
    barriers = service.barriers()
    initial = next(b for b in reversed(barriers) if b["kind"] == "initial")
    assert int(initial["prev"]) >= int(str(before["committed"]))
    assert int(initial["prev"]) in {int(b["epoch"]) for b in barriers if b["committed_at"] is not None}
    assert service.rows(job) >= rows
    abandoned = {int(b["epoch"]) for b in barriers if b["failure"] is not None}
    for relation in service.get("/v1/relations")["items"] if abandoned else ():
        table, epochs = f"state.t_{relation['id']}", ", ".join(str(epoch) for epoch in abandoned)
        left = service.stored(f"select count(*) from {table} where _from in ({epochs}) or _to in ({epochs})")
        assert left == [(0,)], (relation["name"], abandoned)
    return abandoned
