"""Roles, API tokens and the audit trail through the doors, on a real meta store."""

import re
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from service.api.access import declared
from service.api.app import ROUTERS
from service.api.settings import ApiSettings
from service.domain.errors import Unavailable
from service.domain.roles import PEOPLE, Role, permits
from service.meta_store import keys
from service.meta_store.stores import PostgresStores
from service.operations.upkeep import maintenance
from service.ports.records import Claim
from service.protocol.ids import DATABASE_GRAPH, Term
from tests.architecture.test_roles import ADMINISTERED, OPERATED, routes
from tests.support.http import WORKER_TOKEN, BrokenStores, StillClock, doors, refused, world_of
from tests.support.meta_store import NOW, running, stores_on, table_and_view

pytestmark = pytest.mark.postgres

ROOT = "the root's own"
CLOSED = ApiSettings(worker_token=SecretStr(WORKER_TOKEN), api_token=SecretStr(ROOT))
CATALOG = (
    "relation",
    "relation_column",
    "job",
    "fragment",
    "actor",
    "secret",
    "system_parameter",
    "source",
    "source_cleanup",
    "command",
    "request",
    "statement",
    "leader_lease",
    "graph",
    "named_index",
    "view_reference",
    "idempotency_key",
)


@dataclass
class MovingClock(StillClock):
    """Both clocks move when the test says so."""

    def pass_(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.seconds += seconds


@dataclass
class CountedStores:
    """Counts transactions."""

    stores: PostgresStores
    begun: int = 0

    def begin(self, *given: Any, **named: Any) -> Any:
        self.begun += 1
        return self.stores.begin(*given, **named)


@dataclass
class Doors:
    """The closed doors, and who stands before them."""

    http: httpx.AsyncClient
    stores: CountedStores
    clock: MovingClock
    engine: AsyncEngine

    async def call(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {who}", **more.pop("headers", {})}
        return await self.http.request(method, path, headers=headers, **more)

    async def token(self, name: str, role: str, **more: Any) -> str:
        answer = await self.call(ROOT, "POST", "/v1/tokens", json={"name": name, "role": role, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()["text"]

    async def sql(self, who: str, statement: str) -> httpx.Response:
        return await self.call(who, "POST", "/v1/sql", json={"sql": statement})

    async def entries(self, who: str = ROOT, **parameters: str) -> list[dict[str, Any]]:
        """Return the audit trail, oldest first."""
        answer = await self.call(who, "GET", "/v1/audit", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["items"][::-1]

    async def catalog(self) -> Mapping[str, list[str]]:
        """Return every row of the catalog, and what the audit trail says was accepted."""
        found: dict[str, list[str]] = {}
        async with self.engine.connect() as connection:
            present = set(
                (
                    await connection.execute(
                        text("select table_name from information_schema.tables where table_schema = 'tidefill'")
                    )
                ).scalars()
            )
            for table in present.intersection(CATALOG):
                rows = await connection.execute(text(f"select t::text from tidefill.{table} t order by 1"))
                found[table] = list(rows.scalars())
            rows = await connection.execute(
                text("select id::text from tidefill.audit_entry where outcome = 'accepted'")
            )
            found["accepted"] = list(rows.scalars())
        assert len(found) > 14
        return found


@pytest.fixture
async def closed(database_url: str) -> AsyncGenerator[Doors]:
    async with stores_on(database_url) as (stores, engine):
        counted, clock = CountedStores(stores), MovingClock()
        async with doors(counted, settings=CLOSED, clock=clock) as http:
            yield Doors(http, counted, clock, engine)


async def test_a_token_opens_what_its_role_permits(closed: Doors) -> None:
    for role in PEOPLE:
        token = await closed.token(f"of-{role}", role)
        assert re.fullmatch(r"tdf_\d+_[A-Za-z0-9_-]{43}", token)
        assert (await closed.call(token, "GET", "/v1/jobs")).status_code == 200
        for path, needs in (("/v1/mutations", Role.OPERATOR), ("/v1/recover", Role.ADMIN)):
            body = {"json": {"type": "pause"}} if needs is Role.OPERATOR else {}
            answer = await closed.call(token, "POST", path, **body)
            if permits(role, needs):
                assert answer.status_code == 200, answer.text
                continue
            problem = refused(answer, 403, "forbidden")
            assert (problem["needs"], problem["has"]) == (needs, role)
            assert answer.headers["www-authenticate"] == 'Bearer error="insufficient_scope"'


async def test_a_token_that_was_changed_is_refused(closed: Doors) -> None:
    token = await closed.token("ci", "viewer")
    other = "A" if token[-2] != "A" else "B"
    swapped, elsewhere = f"{token[:-2]}{other}{token[-1]}", f"tdf_9{token[5:]}"
    # A token in two spellings would have the sessions of two.
    zero = f"tdf_0{token[4:]}"
    for changed in (token[:-1], f"{token}x", f"{token[:-1]}~", swapped, elsewhere, zero):
        answer = await closed.call(changed, "GET", "/v1/jobs")
        refused(answer, 401, "unauthorized")
        assert token[6:] not in answer.text


async def test_a_token_is_kept_as_a_digest_and_shown_once(closed: Doors) -> None:
    token = await closed.token("ci", "operator")
    secret = token.split("_", 2)[2]
    listed = await closed.call(ROOT, "GET", "/v1/tokens")
    assert [one["name"] for one in listed.json()["items"]] == ["ci"]
    assert secret not in listed.text
    async with closed.engine.connect() as connection:
        for table in ("api_token", "audit_entry", "event", "idempotency_key"):
            rows = (await connection.execute(text(f"select t::text from tidefill.{table} t"))).scalars()
            assert not [row for row in rows if secret in row], table


async def test_a_revoked_token_ends_at_once_here_and_soon_elsewhere(closed: Doors) -> None:
    token = await closed.token("ci", "viewer")
    assert (await closed.call(token, "GET", "/v1/jobs")).status_code == 200
    async with closed.stores.begin() as tx:
        (known,) = await tx.tokens.page(after=0, limit=9)
        await tx.tokens.revoke(known.id, now=closed.clock.now())  # as another service does it
    assert (await closed.call(token, "GET", "/v1/jobs")).status_code == 200
    closed.clock.pass_(5)
    refused(await closed.call(token, "GET", "/v1/jobs"), 401, "unauthorized")

    again = await closed.token("ci", "viewer")
    assert (await closed.call(again, "GET", "/v1/jobs")).status_code == 200
    id_ = again.split("_")[1]
    assert (await closed.call(ROOT, "DELETE", f"/v1/tokens/{id_}")).json()["revoked_at"] is not None
    refused(await closed.call(again, "GET", "/v1/jobs"), 401, "unauthorized")
    refused(await closed.call(ROOT, "DELETE", "/v1/tokens/999"), 404, "not-found")


async def test_a_token_expires_to_the_second(closed: Doors) -> None:
    token = await closed.token("ci", "viewer", expires_in_seconds=3)
    closed.clock.pass_(2.9)
    assert (await closed.call(token, "GET", "/v1/jobs")).status_code == 200
    closed.clock.pass_(0.1)
    refused(await closed.call(token, "GET", "/v1/jobs"), 401, "unauthorized")


async def test_a_token_costs_no_transaction_while_it_is_remembered(closed: Doors) -> None:
    token = await closed.token("ci", "viewer")

    async def cost(who: str) -> int:
        before = closed.stores.begun
        assert (await closed.call(who, "GET", "/v1/workers")).status_code == 200
        return closed.stores.begun - before

    plain = await cost(ROOT)
    first = [await cost(token) - plain for _ in range(3)]
    assert first == [3, 0, 0], "it is read, so are the quotas, and its use is noted"
    closed.clock.pass_(5)
    assert await cost(token) - plain == 2, "its use was noted within the minute"
    closed.clock.pass_(60)
    assert await cost(token) - plain == 3
    (known,) = (await closed.call(ROOT, "GET", "/v1/tokens")).json()["items"]
    assert datetime.fromisoformat(known["last_used_at"]) == closed.clock.now()


async def test_n10_only_admins_see_the_path_of_a_probe(closed: Doors) -> None:
    """The address of a webhook is a secret, and is in the path."""
    name, url = "backfill_auto_probe_http", "http://u:P@h:1/services/P?k=P"
    for admin in (ROOT, await closed.token("a", "admin")):
        altered = await closed.call(admin, "PATCH", "/v1/system-parameters", json={name: url})
        for answer in (altered, await closed.call(admin, "GET", "/v1/system-parameters")):
            assert answer.json()[name] == "http://***@h:1/services/P?***"
        rows = (await closed.sql(admin, "SHOW PARAMETERS")).json()["rows"]
        assert [name, "http://***@h:1/services/P?***"] in rows
    for role in ("viewer", "operator"):
        token = await closed.token(role, role)
        assert (await closed.call(token, "GET", "/v1/system-parameters")).json()[name] == "http://***@h:1/***?***"
        assert [name, "http://***@h:1/***?***"] in (await closed.sql(token, "SHOW PARAMETERS")).json()["rows"]
        assert (
            "services"
            not in (await closed.call(token, "GET", "/v1/events", headers={"Accept": "application/json"})).text
        )
    async with closed.engine.connect() as connection:
        kept = await connection.execute(text(f"select value from tidefill.system_parameter where name = '{name}'"))
        assert kept.scalar() == "http://***@h:1/***?***"


async def test_a_viewer_changes_nothing_by_any_route_or_statement(closed: Doors) -> None:
    table, _ = await table_and_view(closed.stores)
    await running(closed.stores)
    viewer = await closed.token("v", "viewer")
    before = await closed.catalog()
    for route in routes([one for router in ROUTERS for one in router.routes]):
        needed, path = declared(route), re.sub(r"\{\w+\}", "1", route.path_format)
        assert needed is not None
        (method,) = sorted(route.methods or ())
        if method == "GET" or needed.role in {None, Role.VIEWER, Role.WORKER}:
            continue
        answer = await closed.call(viewer, method, path, json={"name": "x", "value": "y", "type": "pause"})
        assert refused(answer, 403, "forbidden")["has"] == "viewer", path
    for statement in (*OPERATED, *ADMINISTERED):
        refused(await closed.sql(viewer, statement), 403, "forbidden")
    # Statements that a parser could take for a query.
    for statement in (
        "WITH x AS (DELETE FROM t RETURNING id) SELECT * FROM x",
        "/* SELECT */ DROP TABLE t",
        ";; INSERT INTO t VALUES (1)",
        "EXPLAIN DROP TABLE t",
        "EXPLAIN ANALYZE DELETE FROM t",
        "SELECT 1; DROP TABLE t",
        f"TABLE t; DELETE FROM {table.name}",
    ):
        assert (await closed.sql(viewer, statement)).status_code in {403, 422}, statement
    assert await closed.catalog() == before


async def test_refusals_are_recorded_once_a_minute_for_each_kind(closed: Doors) -> None:
    viewer = await closed.token("v", "viewer")
    for _ in range(3):
        await closed.call(viewer, "POST", "/v1/recover")
        await closed.sql(viewer, "DROP TABLE t")
        await closed.sql(viewer, "CREATE SECRET s AS 'hidden away'")
    recorded = [one for one in await closed.entries() if one["outcome"] == "refused"]
    assert [(one["route"], one["statement"], one["target"]) for one in recorded] == [
        ("/v1/recover", None, None),
        ("/v1/sql", "DROP TABLE t", "t"),
        ("/v1/sql", "CREATE SECRET s", "s"),
    ]
    closed.clock.pass_(60)
    await closed.call(viewer, "POST", "/v1/recover")
    assert len([one for one in await closed.entries() if one["outcome"] == "refused"]) == 4


async def test_a_day_is_told_by_the_audit_trail(closed: Doors) -> None:
    """Who paused, throttled and cancelled, read as an operator reads it."""
    _, view = await table_and_view(closed.stores)
    await running(closed.stores)
    anna, bob = await closed.token("anna", "operator"), await closed.token("bob", "viewer")
    name, sent = view.name, {"X-Request-Id": "req-1", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    queued = {"params": {"wait": "queued"}}
    assert (await closed.call(anna, "POST", f"/v1/jobs/{name}/pause", headers=sent, **queued)).status_code == 200
    body = {"backfill_rate_limit": 5}
    assert (await closed.call(anna, "PATCH", f"/v1/jobs/{name}", json=body, **queued)).status_code == 200
    refused(await closed.call(bob, "POST", f"/v1/jobs/{name}/cancel"), 403, "forbidden")
    assert (await closed.call(ROOT, "POST", "/v1/secrets", json={"name": "pw", "value": "v3ry"})).status_code == 200
    assert (await closed.sql(ROOT, "ALTER SYSTEM SET barrier_interval_ms = 500")).status_code == 200
    assert (await closed.sql(anna, "CREATE TABLE day (id int primary key) WITH (connector = 'x', p = 'v3ry')")).is_error
    assert (await closed.sql(anna, "DROP MATERIALIZED VIEW gone")).status_code == 404

    ids = {one["name"]: one["id"] for one in (await closed.call(ROOT, "GET", "/v1/tokens")).json()["items"]}
    a, b, root = f"token {ids['anna']} (anna)", f"token {ids['bob']} (bob)", "TIDEFILL_API_TOKEN"
    told = [
        (a, "operator", "/v1/jobs/{job}/pause", name, None, "accepted"),
        (a, "operator", "/v1/jobs/{job}", name, '{"backfill_rate_limit":5}', "accepted"),
        (b, "viewer", "/v1/jobs/{job}/cancel", name, None, "refused"),
        (root, "admin", "/v1/sql", "barrier_interval_ms", "ALTER SYSTEM SET barrier_interval_ms", "accepted"),
    ]
    fields = ("actor", "role", "route", "target", "statement", "outcome")
    entries = await closed.entries(bob)
    assert [tuple(one[field] for field in fields) for one in entries] == told
    assert (entries[0]["request_id"], entries[0]["trace_id"], entries[0]["method"]) == ("req-1", "a" * 32, "POST")
    secret = (root, "admin", "/v1/secrets", "pw", None, "accepted")
    everything = [tuple(one[field] for field in fields) for one in await closed.entries()]
    assert everything[2:] == [*told[:3], secret, told[3]], "the making of two tokens comes first"
    assert "v3ry" not in str(await closed.entries())
    assert [one["actor"] for one in await closed.entries(bob, actor=a, target=name)] == [a, a]
    async with closed.engine.connect() as connection:
        shown = await connection.execute(text("select target from rw_catalog.rw_audit_entries order by id"))
        assert list(shown.scalars()) == [one[3] for one in told]


async def test_the_trail_is_kept_for_90_days_by_the_leader(closed: Doors) -> None:
    await closed.token("ci", "viewer")
    world = world_of(closed.stores)
    async with closed.stores.begin() as tx:
        term = await tx.leases.gain("h", lease=timedelta(days=1))
    assert term is not None
    for days, left in ((89, 1), (91, 0)):
        late = replace(world, clock=StillClock(NOW + timedelta(days=days)))
        await maintenance.forget_past(late, term=Term(term))
        assert len(await closed.entries()) == left


async def test_s6_an_idempotency_key_belongs_to_its_caller(closed: Doors) -> None:
    """Neither another caller's call with the same key nor its answer concerns a caller."""
    viewer, first, second = [await closed.token(role[0] + "1", role) for role in ("viewer", "operator", "admin")]
    key = {"headers": {"Idempotency-Key": "k"}}
    pause = {"json": {"type": "pause"}, **key}
    assert (await closed.call(viewer, "POST", "/v1/sql", json={"sql": "SHOW JOBS"}, **key)).status_code == 200
    commands = [(await closed.call(who, "POST", "/v1/mutations", **pause)).json() for who in (first, first, second)]
    assert commands[0] == commands[1]
    async with closed.stores.begin() as tx:
        assert len(await tx.commands.waiting(DATABASE_GRAPH)) == 2
    refused(await closed.call(viewer, "POST", "/v1/mutations", **pause), 403, "forbidden")


async def test_s6_statements_that_only_read_take_no_key(closed: Doors) -> None:
    for sql in ("SHOW JOBS", "SET background_ddl = true"):
        answer = await closed.call(
            ROOT, "POST", "/v1/sql", json={"sql": sql}, headers={"Idempotency-Key": sql.replace(" ", "")}
        )
        assert answer.status_code == 200
    assert not await _keys(closed)


async def test_s6_of_one_callers_keys_the_newest_are_kept(closed: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' keys stay."""
    monkeypatch.setattr(keys, "KEPT_BYTES", 1_000_000)
    monkeypatch.setattr(keys, "_TRIM_EVERY", 1)
    fill = """
        insert into tidefill.idempotency_key (key, fingerprint, claimed_at, response)
        select caller || ' ' || number, 'f', :now + number * interval '1 s', jsonb_build_object('rows',
            (select string_agg(md5(random()::text), '') from generate_series(1, 3000) where number > 0))
        from unnest(array['a', 'b', 'c']) caller, generate_series(1, 30) number where caller <> 'b' or number < 4
    """
    async with closed.engine.begin() as connection:
        await connection.execute(text(fill), {"now": NOW})
    async with closed.stores.begin() as tx:
        assert isinstance(await tx.keys.claim("a new", "f", now=NOW, hold=timedelta(hours=1)), Claim)
    left = Counter(key.partition(" ")[0] for key in await _keys(closed))
    assert (5 < left["a"] < 12, left["b"], left["c"]) == (True, 3, 30), left
    assert {"a 30", "a new"} < await _keys(closed)


async def test_s6_a_call_is_repeated_over_an_upgrade(closed: Doors) -> None:
    """The service of the release before stored its key without the caller."""
    async with closed.stores.begin() as tx:
        claim = await tx.keys.claim("k", "f", now=NOW, hold=timedelta(hours=1))
        assert isinstance(claim, Claim)
        await tx.keys.store(claim, {"tag": "INSERT 0 1"})
        assert await tx.keys.claim("a k", "f", now=NOW, hold=timedelta(hours=1)) == {"tag": "INSERT 0 1"}
        assert isinstance(await tx.keys.claim("b k", "f", now=NOW, hold=timedelta(hours=1)), Claim)


async def _keys(closed: Doors) -> set[str]:
    async with closed.engine.connect() as connection:
        return set((await connection.execute(text("select key from tidefill.idempotency_key"))).scalars())


async def test_s7_only_admins_see_names_of_tokens_and_secrets_and_literals_of_probes(closed: Doors) -> None:
    viewer = await closed.token("watcher", "viewer")
    await closed.token("hidden_token", "operator")
    await closed.sql(ROOT, "CREATE SECRET hidden_secret WITH (backend = 'meta') AS 'x'")
    probe = "select count(*) /* hidden_comment */ from t where a = 'hidden_word' or b = $x$hidden_word$x$"
    altered = {"backfill_auto_probe_sql": probe}
    assert (await closed.call(ROOT, "PATCH", "/v1/system-parameters", json=altered)).status_code == 200
    for path in ("/v1/events", "/v1/system-parameters", "/v1/secrets", "/v1/audit", "/v1/tokens"):
        answer = await closed.call(viewer, "GET", path, headers={"Accept": "application/json"})
        assert "hidden" not in answer.text, path
    for statement in ("SHOW PARAMETERS", "SHOW SECRETS"):
        assert "hidden" not in (await closed.sql(viewer, statement)).text, statement
    assert "a = '***' or b = '***'" in (await closed.sql(viewer, "SHOW PARAMETERS")).text
    seen = (await closed.call(ROOT, "GET", "/v1/events", headers={"Accept": "application/json"})).text
    assert "hidden_token" in seen
    assert "hidden_secret" in seen
    async with closed.stores.begin() as tx:
        assert await tx.parameters.secret("backfill_auto_probe_sql") == probe
    async with closed.engine.connect() as connection:
        for view in ("rw_events", "rw_event_logs", "rw_system_parameters"):
            rows = (await connection.execute(text(f"select v::text from rw_catalog.{view} v"))).scalars().all()
            assert rows
            assert "hidden" not in str(rows), view


async def test_a_meta_store_that_is_away_is_no_refusal() -> None:

    async with doors(BrokenStores(Unavailable("away")), settings=CLOSED) as http:
        answer = await http.get("/v1/jobs", headers={"Authorization": "Bearer tdf_1_" + "x" * 43})
    refused(answer, 503, "unavailable")
