"""Views of a benchmark's queries over HTTP, while its tables change and processes die.

Half of the views are created before their tables have rows, half afterwards, by Snapshot and by Arrangement.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from httpx import TransportError

from tests.support import nexmark, queries_nexmark, queries_tpch, tpch
from tests.support.service import ARRANGEMENT, ProblemError, Service
from tests.support.waiting import Repeating, until

Kill = Callable[[Service], object]
KILLS: Final[Sequence[Kill]] = (Service.kill_worker, Service.kill_jvm, Service.kill)
BACKGROUND: Final = {"background_ddl": "true"}
_REFUSED: Final = "only the state store can compute a stage of this view"


@dataclass(frozen=True)
class Benchmark:
    """The tables of a benchmark, their rows and random changes, and its queries by name."""

    tables: Iterable[str]
    queries: Mapping[str, str]
    filled: Callable[[], Iterator[str]]
    changed: Callable[[Random], str]

    @property
    def early(self) -> Sequence[str]:
        """The views that are created before the tables have rows."""
        return list(self.queries)[::2]

    @property
    def late(self) -> Sequence[str]:
        """The other views."""
        return list(self.queries)[1::2]

    def parts(self, views: int) -> Iterator["Benchmark"]:
        """Yield the benchmark with so many of its queries at a time."""
        names = list(self.queries)
        for place in range(0, len(names), views):
            yield replace(self, queries={name: self.queries[name] for name in names[place : place + views]})


def tpch_at(scale: float) -> Benchmark:
    """TPC-H; a scale of 0.01 has 60,000 line items."""
    return Benchmark(
        queries_tpch.TABLES.values(),
        queries_tpch.QUERIES,
        lambda: tpch.filled(scale),
        lambda random: tpch.changed(random, scale),
    )


def nexmark_of(bids: int, *, share: int = 1) -> Benchmark:
    """Nexmark with so many bids, and one of so many of its queries."""
    return Benchmark(
        queries_nexmark.TABLES.values(),
        dict(list(queries_nexmark.QUERIES.items())[::share]),
        lambda: nexmark.filled(bids),
        lambda random: nexmark.changed(random, bids),
    )


@dataclass
class Followed:
    """A benchmark in a service. `engine` reads the history of each view that it can compute."""

    service: Service
    benchmark: Benchmark
    engine: str = "auto"
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Why Spark cannot compute a view, by the view's name. The state store has computed it."""
    done: int = 0
    """How many changes were answered."""

    def prepare(self) -> None:
        """Create the tables, and let all views be created at once."""
        self.service.run("ALTER SYSTEM SET barrier_interval_ms = 200")
        self.service.run("ALTER SYSTEM SET max_concurrent_creating_streaming_jobs = 0")
        if self.engine == "auto":
            # Both engines have a part in views of a few thousand rows.
            self.service.run("ALTER SYSTEM SET spark_history_rows = 2000")
        for text in self.benchmark.tables:
            self.service.run(text)

    def fill(self) -> None:
        """Insert all rows."""
        for statement in self.benchmark.filled():
            self.service.run(statement)

    def create(self, names: Sequence[str]) -> None:
        """Begin to create views: every other one by Arrangement, which is the store's. Those of Spark have graphs of
        their own: it may follow many changes at once there, and no statement waits for it.
        """
        for place, name in enumerate(names):
            text = f"CREATE MATERIALIZED VIEW {name} AS {self.benchmark.queries[name]}"
            own = {"own_graph": "true"} if self.engine == "spark" else ARRANGEMENT if place % 2 else {}
            session = {**BACKGROUND, **own}
            try:
                self.service.run(text, **session, stage_engine=self.engine)
            except ProblemError as error:
                if self.engine != "spark" or _REFUSED not in str(error):
                    raise
                self.refused[name] = error.problem["detail"]
                self.service.run(text, **session)

    def until_created(self, names: Sequence[str]) -> None:
        for name in names:
            self.service.until_created(name)

    def drop(self, names: Sequence[str]) -> None:
        for name in names:
            self.service.run(f"DROP MATERIALIZED VIEW {name}")

    def changing(self, seed: int) -> Repeating:
        """Change random tables, statement by statement, until left. The service may be away meanwhile."""
        random = Random(seed)

        def change(_: int) -> None:
            try:
                self.service.run(self.benchmark.changed(random))
            except ProblemError as error:
                if error.status < 500:
                    raise
            except TransportError:
                pass
            else:
                self.done += 1

        return Repeating(change)

    def until_changed(self, changes: Repeating, more: int) -> None:
        """Wait for some more changes to be answered."""
        wanted = self.done + more
        until(lambda: changes.error or self.done >= wanted, what=lambda: f"{self.done} of {wanted} statements")

    def kill_each(self, changes: Repeating, kills: Sequence[Kill] = KILLS) -> None:
        """Kill one after another, with some changes before each kill."""
        service = self.service
        for kill in kills:
            self.until_changed(changes, 4)
            generation = service.graph()["generation"]
            kill(service)
            if kill is Service.kill:
                service.wait_killed()
                service.restart()
            service.wait_ready()
            service.until_recovered(generation)

    def assert_equal(self, names: Sequence[str]) -> None:
        """Each view holds what its query answers at one epoch."""
        self.service.flush()
        wrong = {name: result for name in names if not (result := self._verified(name))["equal"]}
        assert not wrong, {name: (one["rows_missing"][:3], one["rows_extra"][:3]) for name, one in wrong.items()}

    @property
    def full(self) -> int:
        """How many views have rows. One without shows little."""
        return sum(self.service.value(f"select count(*) from {name}") > 0 for name in self.benchmark.queries)

    def _verified(self, name: str) -> dict[str, Any]:
        return self.service.post(f"/v1/jobs/{self.service.job(name)}/verify")


def followed_through_kills(followed: Followed, kills: Sequence[Kill] = KILLS) -> None:
    """Create half of the views before and half after the rows, kill while rows change, and compare each view (I1, I3,
    I12).
    """
    early, late = followed.benchmark.early, followed.benchmark.late
    followed.create(early)
    followed.until_created(early)
    followed.fill()
    followed.assert_equal(early)
    with followed.changing(1) as changes:
        followed.create(late)
        followed.kill_each(changes, kills)
        followed.until_created(late)
        followed.until_changed(changes, 20)
    followed.assert_equal(list(followed.benchmark.queries))
    assert followed.full > len(followed.benchmark.queries) // 2
