"""Tables that change and views of every strategy that are created, altered, cancelled and dropped, while something
disturbs the service. In the end every view that was kept is its query, every statement has run once, and of all else
nothing is left (I1, I2, I3, I4, I6, I9).
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random

from tests.support.disturbing import Disturber
from tests.support.leftovers import assert_nothing_left
from tests.support.persistent_client import PersistentClient
from tests.support.service import Service
from tests.support.storm_tables import KEYS, Ledger, StormTable
from tests.support.storm_views import Gallery, User
from tests.support.waiting import Repeating

USERS = 3
LOGICAL = (
    "CREATE VIEW recent AS SELECT id, v, note FROM orders WHERE id % 2 = 0 UNION ALL SELECT id, v, note FROM visits"
)


@dataclass
class Watcher:
    """Rows of history never decrease, whoever is killed (I6)."""

    client: PersistentClient
    over: threading.Event
    seen: dict[int, int] = field(default_factory=dict[int, int])

    def turn(self, _turn: int) -> None:
        self.over.wait(0.5)
        for job in self.client.get("/v1/ddl-progress")["items"]:
            before = self.seen.get(job["ddl_id"], 0)
            assert job["rows"] >= before, (before, job)
            self.seen[job["ddl_id"]] = job["rows"]


@dataclass
class Storm:
    """Everything that goes on at once; each has a source of randomness and a name of its own."""

    service: Service
    """Where calls go."""
    seed: int
    disturber: Callable[[Random, threading.Event], Disturber]

    def __post_init__(self) -> None:
        service, self.over, self.pool = self.service, threading.Event(), ThreadPoolExecutor(64, "storm")
        self.client = PersistentClient(service, f"storm-{self.seed}")
        self.killer = self.disturber(self._random("kills"), self.over)
        self.ledger = Ledger(service, self.over)
        self.tables = [StormTable(name, self._client(name), self._random(name), self.pool) for name in KEYS]
        self.gallery = Gallery(list(KEYS), ["recent"])
        self.users = [
            User(self._client(name), self.gallery, self._random(name), self.pool, self.over)
            for name in (f"user-{number}" for number in range(USERS))
        ]
        self.watcher = Watcher(self._client("watcher"), self.over)

    def prepare(self) -> None:
        random = self._random("parameters")
        self.service.run(f"ALTER SYSTEM SET barrier_interval_ms = {random.choice((250, 500, 1000))}")
        self.service.run(f"ALTER SYSTEM SET checkpoint_frequency = {random.choice((1, 1, 2))}")
        self.service.run(f"ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = {random.choice((0, 2))}")
        self.ledger.prepare()
        for table in self.tables:
            table.prepare()
        self.client.run(LOGICAL)

    def rage(self, lasting: float) -> None:
        """Go on for so long, or until something goes wrong."""
        turns = [one.turn for one in (self.ledger, *self.tables, *self.users, self.watcher)]
        with ExitStack() as stack:
            running = [stack.enter_context(Repeating(turn)) for turn in turns]
            # Those that are still to be answered need a service.
            stack.callback(self.killer.revive)
            running.append(stack.enter_context(Repeating(self.killer.turn)))
            stack.callback(self._end, running)
            ends = threading.Event()
            while lasting > 0 and not any(one.error for one in running):
                ends.wait(1)
                lasting -= 1

    def _end(self, running: Sequence[Repeating]) -> None:
        self.over.set()
        for one in running:
            one.stop.set()

    def settle(self) -> None:
        """Let every view come to its end."""
        self.users[0].over = threading.Event()
        for view in list(self.gallery.views.values()):
            if not view.created:
                self.users[0].keep(view, seconds=300)
                assert view.created, (view, self.client.get("/v1/ddl-progress"))

    def check(self) -> None:
        self.service.flush()
        for table in self.tables:
            assert table.check(self.service) > 0
        self.ledger.check()
        for view in self.gallery.created():
            self.service.assert_equal(view.name, view.query)
        assert_nothing_left(self.service)

    def figures(self) -> str:
        """Return what has happened, for people."""
        graph = self.service.graph()
        changed = ", ".join(f"{table.name} {table.changed}" for table in self.tables)
        lines = [
            f"seed {self.seed}: {sum(self.killer.kills.values())} kills {dict(self.killer.kills)}",
            f"generation {graph['generation']}, {len(self.watcher.seen)} jobs seen in progress",
            f"ledger {len(self.ledger.answered)} answered, {len(self.ledger.unknown)} unknown; rows changed: {changed}",
            f"{self.gallery.made} views: kept {[(view.name, view.strategy) for view in self.gallery.created()]}",
            f"  done: {dict(self.gallery.deeds)}",
            *(f"  {strategy} {end}: {times}" for (strategy, end), times in sorted(self.gallery.ends.items())),
            *(f"  refused {times} times: {words}" for words, times in sorted(self.gallery.refusals.items())),
        ]
        return "\n".join(lines) + "\n"

    def _random(self, name: str) -> Random:
        return Random(f"{self.seed} {name}")

    def _client(self, name: str) -> PersistentClient:
        return PersistentClient(self.service, f"storm-{self.seed}-{name}")
