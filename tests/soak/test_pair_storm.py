"""Each two kinds of statements at once, on objects that both use, beside the leader's loops with a barrier each 250 ms,
and with a followed table: none is answered 503 but for a recovery, none waits for ever, no transaction locks rows out
of order, and in the end every view is its query and nothing else is left (I9, I12, I13).
"""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement, cycle
from pathlib import Path
from random import Random

import pytest

from tests.support.leftovers import assert_nothing_left
from tests.support.production import External, external_postgres, source
from tests.support.service import Repeating, Service, data_directory, running
from tests.support.soaking import first_seed, seconds
from tests.support.storm_pairs import FOLLOWED, JOIN, KINDS, PREPARED, TABLE, VIEW, Actor, Kind
from tests.support.waiting import until
from tests.support.watched_service import OUT_OF_ORDER

pytestmark = [pytest.mark.soak, pytest.mark.e2e]

PAIRS_AT_ONCE = 3
TURNS = 2
"""How often each side of a pair does its part."""
WATCHED = (sys.executable, "-m", "tests.support.watched_service")


@pytest.fixture
def watched() -> Iterator[Service]:
    with data_directory() as directory, running(Service(directory, command=WATCHED)) as service:
        yield service


def test_f2_any_two_statements_run_beside_each_other(watched: Service) -> None:
    folder = watched.data_dir.parent / "external"
    folder.mkdir(mode=0o711)
    with external_postgres(folder) as external:
        prepare(watched, external)
        refusals: dict[str, int] = {}
        pairs = Pairs(watched, external, refusals)
        try:
            pairs.rage(seconds())
            settle(watched)
        finally:
            sys.stdout.write(pairs.figures(watched.log))
        for name in (VIEW, JOIN, FOLLOWED):
            watched.verified(name)
        for kind, name in (("MATERIALIZED VIEW", JOIN), ("MATERIALIZED VIEW", VIEW), ("TABLE", TABLE)):
            watched.run(f"DROP {kind} {name}")
        watched.run("DROP SOURCE pg CASCADE")
        until(lambda: not external.slots() and not external.published(), what="nothing is left there")
        assert_nothing_left(watched)
    watched.stop()
    assert OUT_OF_ORDER not in watched.log.read_text()


def prepare(service: Service, external: External) -> None:
    external.run(
        "create table followed (id int primary key, k int)",
        "insert into followed select id, id % 50 from generate_series(1, 200) id",
        "create table history (id int primary key, v int)",
        "insert into history select id, id from generate_series(1, 20000) id",
    )
    service.run("ALTER SYSTEM SET barrier_interval_ms = 250")
    service.run(source(external))
    service.run(f"CREATE TABLE {FOLLOWED} (*) FROM pg TABLE 'followed'")
    for statement in PREPARED:
        service.run(statement)


def settle(service: Service) -> None:
    """Undo what a kind may have left for all."""
    service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 0")
    service.mutate({"type": "resume"})
    service.run("WAIT")


class Pairs:
    """The pairs in a random order, over and over, some at once."""

    def __init__(self, service: Service, external: External, refusals: dict[str, int]) -> None:
        self.service, self.external, self.refusals = service, external, refusals
        pairs = list(combinations_with_replacement(KINDS, 2))
        Random(first_seed()).shuffle(pairs)
        self.left, self.total, self.done = cycle(pairs), len(pairs), 0
        self.lock, self.over = threading.Lock(), threading.Event()
        self.sides: list[Actor] = []

    def rage(self, lasting: float) -> None:
        """Go on for so long, or until something goes wrong."""
        running = [Repeating(self._turns(lane)) for lane in range(PAIRS_AT_ONCE)]
        for one in running:
            one.__enter__()
        while lasting > 0 and not any(one.error for one in running):
            self.over.wait(1)
            lasting -= 1
        for one in running:
            one.stop.set()
        for one in running:
            one.end()
        for side in self.sides:
            side.http.close()

    def _turns(self, lane: int) -> Callable[[int], None]:
        names = [f"n{lane}{side}" for side in "ab"]
        sides = [
            Actor(self.service, self.external, Random(f"{first_seed()} {one}"), one, self.refusals) for one in names
        ]
        self.sides += sides

        def turn(_turn: int) -> None:
            with self.lock:
                pair = next(self.left)
                self.done += 1
            with ThreadPoolExecutor(2) as pool:
                for one in [pool.submit(self._repeat, kind, side) for kind, side in zip(pair, sides, strict=True)]:
                    one.result()

        return turn

    def _repeat(self, kind: Kind, side: Actor) -> None:
        for _ in range(TURNS):
            kind(side)

    def figures(self, log: Path) -> str:
        """Return what has happened, for people."""
        text = log.read_text()
        lines = [
            f"seed {first_seed()}: {self.done} pairs of {self.total}",
            f"deadlocks {text.count('transaction.deadlocked')}, out of order {text.count(OUT_OF_ORDER)}",
            *(line for line in text.splitlines() if OUT_OF_ORDER in line or "transaction.deadlocked" in line),
            *(f"  refused {times} times: {words}" for words, times in sorted(self.refusals.items())),
        ]
        return "\n".join(lines) + "\n"
