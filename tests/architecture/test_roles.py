"""Which role each route and each kind of statement needs: all of them are listed here, so that none is forgotten."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from service.api.access import declared
from service.api.app import ROUTERS, create_app
from service.domain.roles import PEOPLE, Role, permits
from service.operations.statements.call import HANDLERS
from service.operations.statements.telling import told
from service.operations.world import World
from service.sql.parse import parse
from tests.support.http import OPEN, Checks

ROOT = Path(__file__).parents[2]
OPERATOR, ADMIN = Role.OPERATOR, Role.ADMIN
VIEWERS_OWN: Final = {
    "POST /v1/sql",
    "POST /v1/jobs/{job}/wait",
    "POST /v1/loans",
    "PUT /v1/loans/{loan}",
    "DELETE /v1/loans/{loan}",
}
"""Calls that are no GET and change nothing by themselves; what a statement needs is decided by its kind."""
CHANGING: Final = {
    "POST /v1/relations/{name}/rows": OPERATOR,
    "PATCH /v1/jobs/{job}": OPERATOR,
    "POST /v1/jobs/{job}/pause": OPERATOR,
    "POST /v1/jobs/{job}/resume": OPERATOR,
    "POST /v1/jobs/{job}/start-backfill": OPERATOR,
    "POST /v1/jobs/{job}/cancel": OPERATOR,
    "POST /v1/jobs/{job}/verify": OPERATOR,
    "PATCH /v1/fragments/{fragment}": OPERATOR,
    "POST /v1/fragments/{fragment}/start-backfill": OPERATOR,
    "POST /v1/mutations": OPERATOR,
    "POST /v1/barriers": OPERATOR,
    "POST /v1/recover": ADMIN,
    "POST /v1/leader/resign": ADMIN,
    "POST /v1/sources": ADMIN,
    "POST /v1/sources/check": ADMIN,
    "DELETE /v1/sources/{name}": ADMIN,
    "DELETE /v1/source-cleanups/{cleanup}": ADMIN,
    "POST /v1/secrets": ADMIN,
    "PUT /v1/secrets/{name}": ADMIN,
    "DELETE /v1/secrets/{name}": ADMIN,
    "PATCH /v1/system-parameters": ADMIN,
    "POST /v1/tokens": ADMIN,
    "DELETE /v1/tokens/{token}": ADMIN,
}
ADMINS_READ: Final = {"GET /v1/secrets", "GET /v1/tokens"}
OPEN_TO_ALL: Final = {"GET /", "GET /livez", "GET /readyz", "GET /openapi.json", "GET /docs", "GET /docs/{name}"}

SHOWN: Final = (
    "SELECT 1",
    "SET query_mode = auto",
    "SHOW query_mode",
    "SHOW PARAMETERS",
    "SHOW JOBS",
    "SHOW TABLES",
    "SHOW INTERNAL TABLES",
    "SHOW INDEXES FROM t",
    "SHOW CREATE TABLE t",
    "DESCRIBE t",
    "WAIT",
    "EXPLAIN CREATE MATERIALIZED VIEW m AS SELECT id FROM t",
    "EXPLAIN SELECT 1",
    "EXPLAIN (backfill, format dot) CREATE MATERIALIZED VIEW m AS SELECT id FROM t",
)
OPERATED: Final = (
    "INSERT INTO t VALUES (1, 'told')",
    "UPDATE t SET a = 'told'",
    "DELETE FROM t WHERE a = 'told'",
    "CREATE TABLE t (id int primary key)",
    "CREATE TABLE t (*) FROM s TABLE 'public.t'",
    "CREATE TABLE t (*, PRIMARY KEY (id)) WITH (connector = 'deltalake', location = '/told')",
    "CREATE MATERIALIZED VIEW m AS SELECT id FROM t",
    "CREATE VIEW v AS SELECT id FROM t",
    "CREATE SINK k FROM m WITH (connector = 'blackhole')",
    "CREATE INDEX i ON t (id)",
    "DROP INDEX i",
    "DROP TABLE t",
    "DROP MATERIALIZED VIEW m",
    "DROP VIEW v",
    "DROP SINK k",
    "ALTER MATERIALIZED VIEW m SET BACKFILL_RATE_LIMIT = 5",
    "ALTER MATERIALIZED VIEW m SET PARALLELISM = 2",
    "ALTER TABLE t RELOAD",
    "ALTER TABLE t ADD COLUMN c int DEFAULT 1",
    "ALTER FRAGMENT 7 SET RATE_LIMIT = 5",
    "CANCEL JOBS 7",
    "FLUSH",
)
ADMINISTERED: Final = (
    "CREATE SOURCE s WITH (connector='postgres-cdc', hostname='db', username='u', password='told', database.name='x')",
    "DROP SOURCE s",
    "CREATE SOURCE s WITH (connector = 'deltalake', location = 's3://b/told', s3.secret.key = secret told)",
    "CREATE SINK k FROM m WITH (connector = 'deltalake', location = 's3://b/told', s3.secret.key = secret told)",
    "CREATE SECRET pw AS 'told'",
    "ALTER SECRET pw AS 'told'",
    "DROP SECRET pw",
    "ALTER SYSTEM SET backfill_auto_probe_http = 'http://u:told@h/'",
    "RECOVER",
)
EVERY: Final = {
    **dict.fromkeys(SHOWN, Role.VIEWER),
    **dict.fromkeys(OPERATED, OPERATOR),
    **dict.fromkeys(ADMINISTERED, ADMIN),
    "SHOW SECRETS": ADMIN,
}


def routes(found: list[BaseRoute]) -> Iterator[APIRoute]:
    """Yield the routes of an app, also those of the routers that it includes."""
    for route in found:
        inner = getattr(route, "original_router", None)
        if inner is None:
            assert isinstance(route, APIRoute), f"{route} declares no role"
            yield route
        else:
            yield from routes(inner.routes)


def named(route: APIRoute) -> str:
    (method,) = sorted(route.methods or ())
    return f"{method} {route.path_format}"


def test_every_route_of_the_app_declares_the_role_that_it_needs() -> None:
    app = create_app(cast("World", None), settings=OPEN, ready=Checks())
    found = list(routes(app.router.routes))
    assert len(found) == sum(len(router.routes) for router in ROUTERS) > 50
    for route in found:
        needed, name = declared(route), named(route)
        assert needed is not None, f"{name} declares no role"
        if route.path.startswith("/internal/"):
            assert needed.role is Role.WORKER, name
        elif name in OPEN_TO_ALL:
            assert needed.role is None, name
        elif name in ADMINS_READ:
            assert needed.role is ADMIN, name
        elif name.startswith("GET ") or name in VIEWERS_OWN:
            assert needed.role is Role.VIEWER, name
        else:
            assert needed.role is CHANGING[name], name
    assert set(CHANGING) | VIEWERS_OWN | OPEN_TO_ALL | ADMINS_READ <= {named(route) for route in found}


@pytest.mark.parametrize("text", EVERY)
def test_every_kind_of_statement_needs_its_role(text: str) -> None:
    statement = parse(text)
    assert HANDLERS[type(statement)].role(statement) is EVERY[text]


def test_no_kind_of_statement_is_left_out() -> None:
    assert {type(parse(text)) for text in EVERY} == set(HANDLERS)


@pytest.mark.parametrize("text", [*OPERATED, *ADMINISTERED])
def test_what_is_kept_of_a_statement_says_what_it_does_and_no_secret(text: str) -> None:
    kept = told(parse(text), text)
    assert kept.text.split()[0] == text.split(maxsplit=1)[0], "it was not listed"
    assert "told" not in f"{kept}"
    assert kept.discreet == (" SECRET " in text)
    assert kept.target is not None or text in {"FLUSH", "RECOVER"}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(room: str) -> Iterator[tuple[str, Function]]:
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)} {node.name}", node


def parameters(function: Function) -> set[str]:
    return {one.arg for one in (*function.args.args, *function.args.kwonlyargs)}


def given_to(call: ast.Call) -> set[str]:
    """Return the names that are arguments of a call."""
    values = (*call.args, *(one.value for one in call.keywords))
    return {one.id for one in values if isinstance(one, ast.Name)}


def test_an_operation_records_its_asker_in_a_transaction_or_hands_it_on() -> None:
    """An asker that is only named in an event, or not at all, leaves no entry in the audit trail."""
    found = 0
    for name, function in functions("service/operations"):
        given = parameters(function)
        if "asked_by" not in given or "tx" in given:
            continue
        found += 1
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        records = any(one.arg == "by" for call in calls for one in call.keywords)
        handed = any(
            "asked_by" in names and "tx" not in names
            for call in calls
            if (
                names := {
                    one.id for one in (*call.args, *(k.value for k in call.keywords)) if isinstance(one, ast.Name)
                }
            )
        )
        assert records or handed, name
    assert found > 25


def test_each_role_has_the_rights_of_those_before_it_and_workers_have_their_own() -> None:
    table = {(has, needs): permits(has, needs) for has in Role for needs in Role}
    allowed = {pair for pair, may in table.items() if may}
    below = {(has, needs) for at, has in enumerate(PEOPLE) for needs in PEOPLE[: at + 1]}
    assert allowed == below | {(Role.WORKER, Role.WORKER)}
