"""Kinds of statements, each to be run beside each other one on objects that both use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, Final

import httpx

from tests.support.production import External, source
from tests.support.service import ARRANGEMENT, Service

BACKGROUND: Final = {"background_ddl": "true"}
STUCK_SECONDS: Final = 150.0
"""How long a call may take: a cancel waits up to two minutes for what it removes."""
ROWS: Final = 4_000
TABLE, FOLLOWED, VIEW, JOIN = "t", "f", "m", "j"
"""The objects that all kinds use. Nobody drops them."""
PREPARED: Final = (
    f"CREATE TABLE {TABLE} (id int primary key, k int, v int)",
    f"INSERT INTO {TABLE} SELECT id, id % 50, id FROM generate_series(1, {ROWS}) id",
    f"CREATE MATERIALIZED VIEW {VIEW} AS SELECT id, k, v FROM {TABLE} WHERE v % 2 = 0",
    f"CREATE MATERIALIZED VIEW {JOIN} AS SELECT a.id, b.id AS other"  # noqa: ISC004 - one statement
    f" FROM {TABLE} a JOIN {FOLLOWED} b ON a.k = b.k WHERE a.id < 200",
)


@dataclass
class Stuck(Exception):
    """A call was not answered."""

    what: str


@dataclass
class Actor:
    """One of the two sides of a pair. Its objects have names of their own."""

    service: Service
    external: External
    random: Random
    name: str
    refusals: dict[str, int]
    made: int = 0

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.service.url, headers=self.service.headers, timeout=STUCK_SECONDS)

    def fresh(self) -> str:
        self.made += 1
        return f"{self.name}_{self.made}"

    def run(self, text: str, session: Mapping[str, str] = MappingProxyType({})) -> list[list[Any]]:
        """Run a statement and return its rows; a refusal is counted and gives none."""
        found = self.call("POST", "/v1/sql", json={"sql": text, "session": dict(session)})
        return [] if found is None else found["rows"]

    def call(self, method: str, path: str, **more: Any) -> Any:
        """Call the service. A recovery may refuse a call, and nothing else may be unavailable."""
        try:
            answer = self.http.request(method, path, **more)
        except httpx.TimeoutException as error:
            raise Stuck(f"{method} {path} {more}") from error
        if answer.status_code < 400:
            return answer.json() if answer.content else None
        problem = answer.json()
        assert answer.status_code < 500 or problem["type"].endswith("under-recovery"), (method, path, more, problem)
        words = f"{answer.status_code} {problem['detail'][:60]}"
        self.refusals[words] = self.refusals.get(words, 0) + 1
        return None

    def job(self, name: str) -> int | None:
        found = self.call("GET", f"/v1/relations/{name}")
        return None if found is None else int(found["job"])

    def drop(self, kind: str, name: str) -> None:
        self.run(f"DROP {kind} IF EXISTS {name} CASCADE" if kind != "INDEX" else f"DROP INDEX IF EXISTS {name}")


Kind = Callable[[Actor], None]
SLOW: Final = "WITH (backfill_rate_limit = 300)"


def table(one: Actor) -> None:
    name = one.fresh()
    one.run(f"CREATE TABLE {name} (id int primary key, v int)")
    one.run(f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
    one.drop("TABLE", name)


def chain(one: Actor) -> None:
    """A table with a view, a logical view and a view over both, dropped from the bottom."""
    name = one.fresh()
    one.run(f"CREATE TABLE {name} (id int primary key, v int)")
    one.run(f"CREATE VIEW {name}_l AS SELECT id FROM {name} WHERE v > 0")
    one.run(f"CREATE MATERIALIZED VIEW {name}_m AS SELECT id FROM {name}_l", BACKGROUND)
    one.run(f"CREATE INDEX {name}_i ON {name} (v)", BACKGROUND)
    one.drop("TABLE", name)


def logical_view(one: Actor) -> None:
    name = one.fresh()
    one.run(f"CREATE VIEW {name} AS SELECT id FROM {VIEW} WHERE v > 10")
    one.run(f"CREATE MATERIALIZED VIEW {name}_m AS SELECT id FROM {name}", BACKGROUND)
    one.drop("VIEW", name)


def snapshot(one: Actor) -> None:
    name = one.fresh()
    one.run(f"CREATE MATERIALIZED VIEW {name} AS SELECT id, v FROM {TABLE}")
    one.drop("MATERIALIZED VIEW", name)


def arrangement(one: Actor) -> None:
    name = one.fresh()
    one.run(f"CREATE MATERIALIZED VIEW {name} {SLOW} AS SELECT id, v FROM {VIEW}", {**BACKGROUND, **ARRANGEMENT})
    one.drop("MATERIALIZED VIEW", name)


def aggregate(one: Actor) -> None:
    name = one.fresh()
    one.run(f"CREATE MATERIALIZED VIEW {name} AS SELECT k, count(*) AS n FROM {TABLE} GROUP BY k", BACKGROUND)
    one.drop("MATERIALIZED VIEW", name)


def join(one: Actor) -> None:
    name = one.fresh()
    query = f"SELECT a.id, b.id AS other FROM {TABLE} a JOIN {VIEW} b ON a.k = b.k WHERE a.id < 20"
    one.run(f"CREATE MATERIALIZED VIEW {name} AS {query}", BACKGROUND)
    one.drop("MATERIALIZED VIEW", name)


def ordered(one: Actor) -> None:
    name = one.fresh()
    query = f"SELECT id, v FROM {TABLE} UNION ALL SELECT id, v FROM {VIEW}"
    options = f"WITH (backfill_order = FIXED({TABLE} -> {VIEW}))"
    one.run(f"CREATE MATERIALIZED VIEW {name} {options} AS {query}", {**BACKGROUND, **ARRANGEMENT})
    one.drop("MATERIALIZED VIEW", name)


def cancelled(one: Actor) -> None:
    name = one.fresh()
    session = {**BACKGROUND, **one.random.choice([{}, ARRANGEMENT])}
    one.run(f"CREATE MATERIALIZED VIEW {name} {SLOW} AS SELECT id FROM {TABLE}", session)
    if (job := one.job(name)) is not None:
        one.run(f"CANCEL JOBS {job}")
    one.drop("MATERIALIZED VIEW", name)


def limited(one: Actor) -> None:
    """Throttled, paused, resumed and started by hand while it is created."""
    name = one.fresh()
    session = {**BACKGROUND, **one.random.choice([{}, ARRANGEMENT])}
    one.run(f"CREATE MATERIALIZED VIEW {name} {SLOW} AS SELECT id FROM {TABLE}", session)
    if (job := one.job(name)) is not None:
        one.run(f"ALTER MATERIALIZED VIEW {name} SET BACKFILL_RATE_LIMIT TO AUTO")
        one.call("POST", f"/v1/jobs/{job}/pause")
        one.call("POST", f"/v1/jobs/{job}/resume")
        one.call("POST", f"/v1/jobs/{job}/start-backfill")
        one.run(f"ALTER MATERIALIZED VIEW {name} SET BACKFILL_RATE_LIMIT TO DEFAULT")
    one.drop("MATERIALIZED VIEW", name)


def parallelism(one: Actor) -> None:
    one.run(f"ALTER MATERIALIZED VIEW {VIEW} SET PARALLELISM TO {one.random.choice((1, 2, 3))}")


def index(one: Actor) -> None:
    name = one.fresh()
    column = one.random.choice(("k", "v"))
    one.run(f"CREATE INDEX {name} ON {TABLE} ({column})", one.random.choice([BACKGROUND, {}]))
    one.drop("INDEX", name)


def sink(one: Actor) -> None:
    name = one.fresh()
    one.run(f"CREATE SINK {name} FROM {VIEW} WITH (connector = 'blackhole')", BACKGROUND)
    one.drop("SINK", name)


def followed(one: Actor) -> None:
    """A source whose table is dropped with it while its history is read."""
    name = one.fresh()
    one.run(source(one.external, name, slot__name=f"s_{name}"))
    one.run(f"CREATE TABLE {name}_t (*) WITH (backfill_rate_limit = 2000) FROM {name} TABLE 'history'")
    one.run(f"CREATE MATERIALIZED VIEW {name}_m AS SELECT id FROM {name}_t", BACKGROUND)
    one.drop("SOURCE", name)


def secret(one: Actor) -> None:
    name = one.fresh()
    one.run(f"CREATE SECRET {name} WITH (backend = 'meta') AS 'a'")
    one.run(f"ALTER SECRET {name} AS 'b'")
    one.run(f"DROP SECRET {name}")


def rows(one: Actor) -> None:
    key = one.random.randrange(ROWS) + 1
    one.run(f"UPDATE {TABLE} SET v = v + 1, k = {key % 50} WHERE id = {key}")
    one.run(f"DELETE FROM {TABLE} WHERE id = {key}")
    one.run(f"INSERT INTO {TABLE} VALUES ({key}, {key % 50}, {key})")


def bulk(one: Actor) -> None:
    name = one.fresh()
    one.run(f"CREATE TABLE {name} (id int primary key, v int)")
    body = "id,v\n" + "".join(f"{number},{number}\n" for number in range(500))
    one.call("POST", f"/v1/relations/{name}/rows", content=body, headers={"Content-Type": "text/csv"})
    one.run(f"INSERT INTO {name} SELECT id + 1000, v FROM {VIEW} WHERE id < 300")
    one.drop("TABLE", name)


def external_rows(one: Actor) -> None:
    one.external.run(f"update followed set k = (k + 1) % 50 where id = {one.random.randrange(200) + 1}")


def flush(one: Actor) -> None:
    one.run("FLUSH")


def recover(one: Actor) -> None:
    one.run("RECOVER")


def paused(one: Actor) -> None:
    """All history is paused and resumed."""
    one.call("POST", "/v1/mutations?wait=applied", json={"type": "pause"})
    one.call("POST", "/v1/mutations?wait=applied", json={"type": "resume"})


def parameter(one: Actor) -> None:
    limit = one.random.choice((0, 2, 3))
    one.call("PATCH", "/v1/system-parameters", json={"max_concurrent_creating_streaming_jobs": limit})


def verify(one: Actor) -> None:
    if (job := one.job(VIEW)) is not None:
        one.call("POST", f"/v1/jobs/{job}/verify", params={"engine": "store"})


def shown(one: Actor) -> None:
    for path in ("/v1/jobs", "/v1/ddl-progress", "/v1/barriers", "/v1/sources"):
        one.call("GET", path)
    one.run("SHOW JOBS")
    one.run(f"SELECT count(*) FROM {JOIN}")


def keyed(one: Actor) -> None:
    """The same call twice, with a key."""
    key = {"Idempotency-Key": one.fresh()}
    body = {"sql": f"UPDATE {TABLE} SET v = v WHERE id = {one.random.randrange(ROWS) + 1}"}
    for _ in range(2):
        one.call("POST", "/v1/sql", json=body, headers=key)


KINDS: Final[tuple[Kind, ...]] = (
    *(table, chain, logical_view, snapshot, arrangement, aggregate, join, ordered, cancelled, limited, parallelism),
    *(index, sink, followed, secret, rows, bulk, external_rows, flush, recover, paused, parameter, verify, shown),
    keyed,
)
