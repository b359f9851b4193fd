"""Several services on one database behind faulty proxies, and what disturbs them.

Clients reach the services through one proxy, and each service reaches Postgres through one of its own.
"""

import os
import signal
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import httpx
import psycopg
from sqlalchemy import make_url

from tests.support.faulty_proxy import FaultyProxy, faulty_proxy
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
CALM: Final = 0.7
"""How often the next one waits until the services are ready."""
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
            way = stack.enter_context(faulty_proxy(url.port))
            through = url.set(host="127.0.0.1", port=way.port).render_as_string(hide_password=False)
            service = Service(directory.with_name(f"service-{number}"), {"TIDEFILL_DATABASE_URL": through})
            stack.callback(service.clear)
            service.start()
            made.append(Replica(service, way))
        before = stack.enter_context(faulty_proxy(*(one.service.port for one in made)))
        front = Service(directory, {"TIDEFILL_DATABASE_URL": database_url}, port=before.port)
        stack.callback(front.clear)
        yield Replicas(made, before, front)


@dataclass
class Disturbance:
    """Kills, freezes, cuts off or slows something every few seconds, and mends it."""

    replicas: Replicas
    random: Random
    over: threading.Event
    every: tuple[float, float] = (3, 12)
    kills: Counter[str] = field(default_factory=Counter[str])

    def turn(self, _turn: int) -> None:
        """Wait, mostly until the services are ready, and disturb."""
        if self.random.random() < CALM:
            self._until_ready()
        if self.over.wait(self.random.uniform(*self.every)):
            return
        kind = self.random.choices(list(KINDS), list(KINDS.values()))[0]
        with self._disturbed(kind) as done:
            self.kills[kind if done else f"{kind} (missed)"] += 1
        self.revive()

    def revive(self) -> None:
        """Start the services that were killed."""
        for one in self.replicas.replicas:
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

    def _until_ready(self) -> None:
        while not self.over.wait(0.5):
            with suppress(httpx.TransportError):
                if self.replicas.front.http.get("/readyz", timeout=10).status_code == 200:
                    return

    @contextmanager
    def _disturbed(self, kind: str) -> Generator[bool]:
        """Disturb for a while; give whether there was something to disturb."""
        one = self.random.choice(self.replicas.replicas)
        if "leader" in kind:
            leading = [found for found in self.replicas.replicas if found.service.leads()]
            if not leading:
                yield False
                return
            one = leading[0]
        match kind:
            case "leader" | "service":
                one.service.kill()
            case "worker":
                pids = list(self._workers())
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                yield bool(pids)
                return
            case "frozen" | "frozen leader":
                assert one.service.process is not None
                one.service.process.send_signal(signal.SIGSTOP)
                self.over.wait(self.random.uniform(2, 15))
                one.service.resume()
            case _:
                way = self.replicas.way if kind.startswith("front") else one.way
                self._disturb(way, kind.rsplit(maxsplit=1)[-1])
        yield True

    def _disturb(self, way: FaultyProxy, how: str) -> None:
        if how == "slow":
            way.delay = self.random.uniform(0.02, 0.2)
            self.over.wait(self.random.uniform(2, 8))
            way.delay = 0.0
        elif how != "cut":
            way.black_hole.set()
            self.over.wait(self.random.uniform(2, 15))
            if self.random.random() < 0.5:
                way.cut()
            way.black_hole.clear()
        else:
            way.cut()

    def _workers(self) -> Iterator[int]:
        """Yield the worker that runs the database graph, if the services know one."""
        with suppress(httpx.TransportError, ProblemError, psycopg.OperationalError):
            yield from (int(worker["pid"]) for worker in self.replicas.front.workers())
