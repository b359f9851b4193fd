"""Read-only commands: the state of the service, plans, sources, workers, events."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, Any, Final

import typer

from service.cli import output
from service.cli.client import DEFAULT_URL, CutError, ExitCode, Json, Service, Token, Url, connected
from service.domain.words import capital

commands = typer.Typer()
_RECONNECT_SECONDS: Final = 0.5


@commands.command()
def status(*, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Show whether the service is ready, its barriers, and its jobs by state; exit code 3 when it is not ready."""
    with connected(url, token, as_json=as_json) as service:
        readiness = service.readiness()
        graphs = list(service.items("/v1/graphs"))
        jobs = list(service.pages("/v1/jobs"))
    if as_json:
        output.say_json({"url": url, "readiness": readiness, "graphs": graphs, "jobs": _by_state(jobs)})
    else:
        for line in _status_lines(url, readiness, graphs, jobs):
            output.say(line)
    raise typer.Exit(ExitCode.OK if readiness["status"] == "ok" else ExitCode.UNAVAILABLE)


@commands.command()
def explain(
    *,
    statement: Annotated[str, typer.Argument(help="A CREATE MATERIALIZED VIEW statement, or the text of a view")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show the plan and the strategy that a view would get, and the reason. Creates nothing."""
    whole = statement.lstrip().lower().startswith("create")
    create = statement if whole else f"CREATE MATERIALIZED VIEW explained AS {statement}"
    with connected(url, token, as_json=as_json) as service:
        found = service.post("/v1/sql", {"sql": f"EXPLAIN {create}"})
    if as_json:
        output.say_json(found)
    else:
        for (line,) in found["rows"]:
            output.say(line)


@commands.command()
def sources(*, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List external databases: how far behind each is, why it waits, and the state of every followed table."""
    with connected(url, token, as_json=as_json) as service:
        found = list(service.items("/v1/sources"))
    if as_json:
        output.say_json(found)
        return
    if not found:
        output.say("no sources: CREATE SOURCE makes one (docs/sources.md)")
        return
    columns = [("Source", "text"), ("Lag", "text"), ("Retained", "text"), ("Table", "text"), ("State", "text")]
    output.show_rows([*columns, ("Reason", "text")], (row for one in found for row in _source(one)))


@commands.command()
def check(
    *,
    options: Annotated[list[str], typer.Argument(help="Options of CREATE SOURCE: hostname=.. database.name=.. ..")],
    table: Annotated[list[str] | None, typer.Option("--table", help="A table to be followed; may be repeated")] = None,
    secret: Annotated[str | None, typer.Option(help="The secret that is the password")] = None,
    ask: Annotated[bool, typer.Option("--password", help="Ask for the password")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Check, item by item, whether a Postgres can be followed. Creates nothing. Exit code 1 if an item fails."""
    given = dict(option.split("=", 1) for option in options if "=" in option)
    if len(given) < len(options):
        raise typer.BadParameter("each option is NAME=VALUE", param_hint="OPTIONS")
    body: dict[str, Any] = {"options": {"connector": "postgres-cdc", **given}, "tables": table or []}
    if secret is not None:
        body["secret"] = secret
    if ask:
        body["password"] = typer.prompt("Password", hide_input=True, err=True)
    with connected(url, token, as_json=as_json) as service:
        answer = service.post("/v1/sources/check", body)
    items = answer["items"]
    if as_json:
        output.say_json(items)
    else:
        rows = ([item["item"], "ok" if item["ok"] else "FAILS", item["detail"]] for item in items)
        output.show_rows([("Item", "text"), ("Result", "text"), ("Detail", "text")], rows)
        for sql in (item["sql"] for item in items if not item["ok"] and item["sql"] is not None):
            output.say(sql)
    raise typer.Exit(ExitCode.OK if all(item["ok"] for item in items) else ExitCode.REFUSED)


@commands.command()
def workers(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also workers that ended")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List workers."""
    with connected(url, token, as_json=as_json) as service:
        found = [one for one in service.items("/v1/workers") if everything or one["alive"]]
    if as_json:
        output.say_json(found)
        return
    if not found:
        output.say("no worker is alive: tidefill status says what the service waits for")
        return
    columns = [("Worker", "text"), ("Graph", "bigint"), ("Host", "text"), ("Pid", "bigint"), ("Slots", "bigint")]
    rows = (
        [one["worker"], one["graph"], one["host"], one["pid"], one["parallelism"], one["seen_at"], one["alive"]]
        for one in found
    )
    output.show_rows([*columns, ("Seen", "timestamp"), ("Alive", "boolean")], rows)


@commands.command()
def events(
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new events, until Ctrl-C")] = False,
    after: Annotated[int, typer.Option(help="Only events after this id")] = 0,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Print the event log: what happened to jobs, graphs, workers and sources, and who requested it."""
    with connected(url, token, as_json=as_json) as service:
        for event in _followed(service, after) if follow else service.pages("/v1/events", first=after):
            if as_json:
                output.say_json(event)
            else:
                facts = " ".join(f"{name}={value}" for name, value in event["facts"].items() if value is not None)
                output.say(f"{event['id']:>6} {event['at']} {event['kind']} {facts}")


@commands.command("open")
def open_pages(*, url: Url = DEFAULT_URL) -> None:
    """Print the address of the pages, and open them in a browser if there is one."""
    output.say(url)
    typer.launch(url)


def show_version(value: bool) -> None:  # noqa: FBT001 - typer calls it with the option's value
    """Print the version and end."""
    if value:
        output.say(f"tidefill {version('tidefill')}")
        raise typer.Exit


def _status_lines(
    url: str, readiness: Mapping[str, Any], graphs: list[Mapping[str, Any]], jobs: list[Mapping[str, Any]]
) -> Iterator[str]:
    yield f"{url}: {'ready' if readiness['status'] == 'ok' else 'NOT READY'}"
    for name, said in readiness["checks"].items():
        yield f"  {name:<12} {said}"
    for graph in graphs:
        paused = ", backfills paused" if graph["paused"] else ""
        error = f", last recovery: {graph['last_error']}" if graph["last_error"] else ""
        yield f"graph {graph['graph']}: {capital(graph['status'])}, {graph['recoveries']} recoveries{paused}{error}"
    counts = ", ".join(f"{count} {state}" for state, count in _by_state(jobs).items())
    yield f"jobs: {counts or 'none'}"
    for job in jobs:
        if job["error"]:
            yield f"  {job['name']} (job {job['id']}) {job['state']}: {job['error']}"


def _by_state(jobs: list[Mapping[str, Any]]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job["state"]] = counts.get(job["state"], 0) + 1
    return counts


def _source(source: Mapping[str, Any]) -> Iterator[list[object]]:
    lag, retained = (_bytes(source[name]) for name in ("lag_bytes", "retained_bytes"))
    tables = source["tables"] or [None]
    for number, table in enumerate(tables):
        head = [source["name"], lag, retained] if number == 0 else ["", "", ""]
        rest = ["", "", source["waiting"] or ""]
        if table is not None:
            rest = [table["name"], table["state"], table["reason"] or source["waiting"] or ""]
        yield [*head, *rest]


def _bytes(count: int | None) -> str:
    if count is None:
        return "-"
    return f"{count:,} B" if count < 1 << 20 else f"{count / (1 << 20):,.1f} MB"


def _followed(service: Service, after: int) -> Iterator[Mapping[str, Any]]:
    """Yield events as they happen. A cut stream is resumed after its last event, a moment later."""
    pause = threading.Event()
    while True:
        with suppress(CutError):
            for line in service.lines("/v1/events", after=after):
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    after = event["id"]
                    yield event
        pause.wait(_RECONNECT_SECONDS)
