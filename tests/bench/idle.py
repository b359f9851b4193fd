"""What a service costs of which nobody wants anything, and what its barriers take when many want a little."""

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import psycopg

from tests.bench.barriers import latencies
from tests.bench.clock import monotonic, pause, wall
from tests.bench.figures import Figure, Section, Target, percentile
from tests.support.processes import parent_of, processes
from tests.support.service import Service

SETTLED_SECONDS: Final = 15
"""A worker's JVM compiles and tidies up for a while after its start."""
WATCHED_SECONDS: Final = 60
CALLERS: Final = 64
"""A statement is answered with its epoch, some 60 ms later: so many callers are enough for a thousand a second."""
WRITES_PER_SECOND: Final = 1_000
WRITING_SECONDS: Final = 30
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_COUNTED: Final = (
    "select xact_commit + xact_rollback, sessions from pg_stat_database where datname = current_database()"
)


def idle(service: Service) -> list[Section]:
    """Watch a service that has nothing to do: processor time by process, transactions and new connections."""
    assert service.process is not None
    with service.store() as store:
        backend = store.execute("select pg_backend_pid()").fetchone()
        assert backend is not None
        # Postgres counts this session too, with a delay.
        pause(SETTLED_SECONDS)
        groups = {
            "service": (service.process.pid, service.worker_pid()),
            "worker, with its JVM": (service.worker_pid(), None),
            "Postgres": (parent_of(backend[0]), None),
        }
        before = {name: used_by(root, but=but) for name, (root, but) in groups.items()}
        began, counted = monotonic(), _counted(store)
        pause(WATCHED_SECONDS)
        seconds, after = monotonic() - began, _counted(store)
        # A process that ended meanwhile, such as an idle Python worker of Spark, does not count.
        used = {
            name: sum(one - before[name].get(pid, 0) for pid, one in used_by(root, but=but).items())
            for name, (root, but) in groups.items()
        }
    shares = {name: 100 * one / seconds for name, one in used.items()}
    both = shares["service"] + shares["worker, with its JVM"]
    return [
        Section(
            "An idle service with a worker, barriers at 1 s: processor time",
            (
                *(Figure(name, share, "% of a core") for name, share in shares.items()),
                Figure("service and worker", both, "% of a core", Target("<=", 3)),
                Figure("transactions in Postgres", (after[0] - counted[0]) / seconds, "1/s"),
                Figure("connections opened", after[1] - counted[1], "", Target("<=", 0)),
            ),
        )
    ]


def single_writes(service: Service) -> list[Section]:
    """Have many callers insert one row at a time; return what barriers and callers took."""
    service.sql("CREATE TABLE singles (id bigint PRIMARY KEY, amount bigint)")
    callers = [_Caller(service, number) for number in range(CALLERS)]
    began, first = monotonic(), wall()
    threads = [threading.Thread(target=caller.write, args=(began + WRITING_SECONDS,)) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, last = monotonic() - began, wall()
    failed = [caller.error for caller in callers if caller.error is not None]
    if failed:
        raise failed[0]
    took = [one for caller in callers for one in caller.took]
    service.sql("DROP TABLE singles")
    return [
        Section(
            f"INSERTs of one row by {CALLERS} callers",
            (
                Figure("answered", len(took) / seconds, "1/s", note=f"{WRITES_PER_SECOND:,} asked for"),
                Figure("answer, p50", percentile(took, 0.50), "s"),
                Figure("answer, p99", percentile(took, 0.99), "s"),
                *latencies(service, first, last).figures(p50=1.0, p99=2.0),
            ),
        )
    ]


class _Caller:
    """Inserts a row when it is due, and waits for the answer."""

    def __init__(self, service: Service, number: int) -> None:
        self.number, self.took = number, list[float]()
        self.error: Exception | None = None
        self._connection = HTTPConnection("127.0.0.1", service.port, timeout=60)
        self._headers: Mapping[str, str] = {"Content-Type": "application/json", **service.headers}

    def write(self, until: float) -> None:
        """Write until that instant of the monotonic clock."""
        every = CALLERS / WRITES_PER_SECOND
        due = monotonic() + every * self.number / CALLERS
        try:
            while (now := monotonic()) < until:
                if now < due:
                    pause(due - now)
                # A caller that is late does not catch up.
                due = max(due, now) + every
                began = monotonic()
                self._insert(self.number + CALLERS * len(self.took))
                self.took.append(monotonic() - began)
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits for this one
            self.error = error
        finally:
            self._connection.close()

    def _insert(self, key: int) -> None:
        body = json.dumps({"sql": f"INSERT INTO singles VALUES ({key}, {key})"})
        self._connection.request("POST", "/v1/sql", body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 400:
            raise RuntimeError(text.decode()[:200])


def _counted(store: psycopg.Connection) -> tuple[int, int]:
    """Return how many transactions and sessions there were."""
    row = store.execute(_COUNTED).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def used_by(root: int | None, *, but: int | None = None) -> dict[int, float]:
    """Return the seconds of processor time of a process and of what descends from it, except for `but`, by pid."""
    return {pid: _used(pid) for pid in _tree(root, but=but)}


def _tree(root: int | None, *, but: int | None = None) -> frozenset[int]:
    """Return a process and what descends from it, except for `but` and what descends from that."""
    found, parents = {root}, {pid: parent_of(pid) for pid in processes()}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found and pid != but}:
        found |= more
    return frozenset(pid for pid in found if pid is not None)


def _used(pid: int) -> float:
    """Return the seconds of processor time that a process has used; 0 when it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0
