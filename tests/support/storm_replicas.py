"""Several services on one database behind faulty proxies, and what disturbs them.

Clients reach the services through one proxy, and each service reaches Postgres through one of its own.
"""

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import psycopg
from sqlalchemy import make_url

from tests.support.disturbing import Disturber
from tests.support.faulty_proxy import FaultyProxy, accepting
from tests.support.service import ProblemError, Service

KINDS: Final = {
    "leader": 6,
    "service": 3,
    "worker": 3,
    "frozen": 6,
    "frozen leader": 3,
    "partition": 6,
    "database cut": 5,
    "database slow": 3,
    "front cut": 5,
    "front slow": 3,
    "front black hole": 3,
}
"""Each kind of disturbance, and how often it comes."""
COMMITS: Final = """
create schema watch;
create table watch.committed (id bigserial, graph bigint, epoch bigint, term bigint);
create function watch.seen() returns trigger language plpgsql security definer as $$ begin
  insert into watch.committed (graph, epoch, term) select new.id, new.committed, term from tidefill.leader_lease;
  return null;
end $$;
create trigger watched after update on tidefill.graph for each row
  when (old.committed is distinct from new.committed) execute function watch.seen();
"""
"""Every commit is put down with the term of the leader at that moment."""


@dataclass
class Replica:
    """A service and its way to Postgres."""

    service: Service
    way: FaultyProxy


@dataclass
class Replicas:
    """`front` speaks to whichever service the proxy deals it; no process of its own stands behind it."""

    replicas: Sequence[Replica]
    way: FaultyProxy
    front: Service

    def watch(self) -> None:
        with self.front.store() as connection:
            connection.execute(COMMITS)

    def assert_one_term_per_epoch(self) -> int:
        """Assert that no graph has committed an epoch twice or gone back, nor under an older term (I2, I7); return the
        number of terms.
        """
        order = "partition by graph order by id"
        wrong = self.front.stored(
            f"select * from (select *, lag(epoch) over ({order}) as last, lag(term) over ({order}) as before"
            " from watch.committed) c where epoch <= last or term < before"
        )
        assert wrong == []
        ((terms,),) = self.front.stored("select count(distinct term) from watch.committed")
        return terms


@contextmanager
def replicas(database_url: str, directory: Path, count: int) -> Generator[Replicas]:
    """Run so many services, each with a worker of its own; end everything, whatever became of it."""
    url = make_url(database_url)
    assert url.port is not None
    with ExitStack() as stack:
        made: list[Replica] = []
        for number in range(count):
            way = stack.enter_context(accepting(FaultyProxy([("127.0.0.1", url.port)])))
            through = url.set(host="127.0.0.1", port=way.port).render_as_string(hide_password=False)
            service = Service(directory.with_name(f"service-{number}"), {"TIDEFILL_DATABASE_URL": through})
            stack.callback(service.clear)
            service.start()
            made.append(Replica(service, way))
        before = stack.enter_context(accepting(FaultyProxy([("127.0.0.1", one.service.port) for one in made])))
        front = Service(directory, {"TIDEFILL_DATABASE_URL": database_url}, port=before.port)
        stack.callback(front.clear)
        yield Replicas(made, before, front)


@dataclass
class Disturbance(Disturber):
    """Kills, freezes, cuts off or slows something. `service` is the front of the replicas."""

    KINDS = KINDS
    every: tuple[float, float] = (3, 12)
    replicas: Sequence[Replica] = ()
    way: FaultyProxy = field(kw_only=True)
    """The way of the clients."""

    def revive(self) -> None:
        for one in self.replicas:
            process = one.service.process
            assert process is not None
            code = process.poll()
            if code is None:
                continue
            if code != -signal.SIGKILL:
                # It cannot start while its way to Postgres is cut: whoever started it tries again.
                self.kills[f"(a service ended with {code})"] += 1
            self.over.wait(self.random.uniform(0, 5))
            one.service.start(ready=False)

    def disturb(self, kind: str) -> bool:
        one = self.random.choice(self.replicas)
        if "leader" in kind:
            leading = [found for found in self.replicas if found.service.leads()]
            if not leading:
                return False
            one = leading[0]
        match kind:
            case "leader" | "service":
                one.service.kill()
            case "worker":
                return self._kill_worker()
            case "frozen" | "frozen leader":
                assert one.service.process is not None
                one.service.process.send_signal(signal.SIGSTOP)
                self.over.wait(self.random.uniform(2, 15))
                one.service.resume()
            case "partition" | "front black hole":
                self._withhold(self.way if kind.startswith("front") else one.way)
            case "database slow" | "front slow":
                self._slow(self.way if kind.startswith("front") else one.way)
            case _:
                (self.way if kind.startswith("front") else one.way).cut()
        return True

    def _slow(self, way: FaultyProxy) -> None:
        way.far = self.random.uniform(0.02, 0.2)
        self.over.wait(self.random.uniform(2, 8))
        way.far = 0.0

    def _withhold(self, way: FaultyProxy) -> None:
        way.hangs.set()
        self.over.wait(self.random.uniform(2, 15))
        if self.random.random() < 0.5:
            way.cut()
        way.hangs.clear()

    def _kill_worker(self) -> bool:
        pids = list(self._workers())
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)

    def _workers(self) -> Iterator[int]:
        """Yield the worker that runs the database graph, if the services know one."""
        with suppress(httpx.TransportError, ProblemError, psycopg.OperationalError):
            yield from (int(worker["pid"]) for worker in self.service.workers())
