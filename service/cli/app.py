"""`tidefill`: the HTTP API for a person at a terminal. Most commands are one or two HTTP calls.

`serve`, `demo`, `demo-cdc`, `demo-lake`, `migrate` and `prepare` run in this process or start processes of their own.

Exit codes: 0 done, 1 refused, 2 wrong use, 3 the service is away or failed, 4 a verification found a difference, 130
interrupted.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from service.cli import access, detail, inspection, loading, output, pipeline, watching
from service.cli.client import DEFAULT_URL, ExitCode, Job, Json, OneJob, Service, Token, Url, connected
from service.cli.live import Live
from service.cli.statement_runner import StatementRunner, exit_code_of
from service.domain.words import UNLIMITED, span, speed

app = typer.Typer(
    name="tidefill",
    help="Build materialized views over live tables, and watch, steer and verify it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(loading.commands)
app.add_typer(inspection.commands)
app.add_typer(access.commands)
app.add_typer(pipeline.commands, name="pipeline")

_LIVE_STATES = ("Initial", "Queued", "Creating", "Created", "Cancelling", "Failed", "Dropping")


@app.callback()
def tidefill(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=inspection.show_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    """Build materialized views over live tables, and watch, steer and verify it."""


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the embedded Postgres lives")] = None,
) -> None:
    """Run the service, with its own Postgres and worker unless TIDEFILL_* variables name others."""
    # Imported here, because a client must start fast, and only this command needs the whole service.
    from pydantic import ValidationError  # noqa: PLC0415
    from pydantic_settings import SettingsError  # noqa: PLC0415

    from service import bootstrap  # noqa: PLC0415
    from service.domain.errors import MetaError, Refused  # noqa: PLC0415
    from service.settings import read_settings  # noqa: PLC0415

    named = {"host": host, "port": port, "data_dir": data_dir}
    given = {name: value for name, value in named.items() if value is not None}
    try:
        settings = read_settings().model_copy(update=given)
        bootstrap.serve(settings)
    except ValidationError as error:
        faults = ", ".join(f"TIDEFILL_{str(fault['loc'][0]).upper()}: {fault['msg']}" for fault in error.errors())
        output.complain({"detail": faults})
        raise typer.Exit(ExitCode.USAGE) from None
    except SettingsError as error:
        output.complain({"detail": f"{error}: it must be JSON"})
        raise typer.Exit(ExitCode.USAGE) from None
    except MetaError as error:
        output.complain({"detail": error.message})
        raise typer.Exit(ExitCode.USAGE if isinstance(error, Refused) else ExitCode.UNAVAILABLE) from None


@app.command()
def demo(
    *, keep: Annotated[bool, typer.Option("--keep", help="Leave it running at the end, until Ctrl-C")] = False
) -> None:
    """Demonstrate on a service of its own: build a view over a table that keeps changing, and verify it."""
    # Imported here, because a client must start fast.
    from service.cli.demo import demo as run  # noqa: PLC0415

    raise typer.Exit(run(keep=keep))


@app.command("demo-cdc")
def demo_cdc(
    *, keep: Annotated[bool, typer.Option("--keep", help="Leave it running at the end, until Ctrl-C")] = False
) -> None:
    """Demonstrate CDC: tables follow an external Postgres under load, with views on them; all are compared with it."""
    from service.cli.demo_cdc import demo_cdc as run  # noqa: PLC0415

    raise typer.Exit(run(keep=keep))


@app.command("demo-lake")
def demo_lake(
    *, keep: Annotated[bool, typer.Option("--keep", help="Leave it running at the end, until Ctrl-C")] = False
) -> None:
    """Demonstrate Delta: two tables that another program changes are joined into a third one, and compared by it."""
    from service.cli.demo_lake import demo_lake as run  # noqa: PLC0415

    raise typer.Exit(run(keep=keep))


@app.command()
def migrate(
    database_url: Annotated[
        str, typer.Option(envvar="TIDEFILL_DATABASE_URL", help="The meta store, postgresql://..", show_default=False)
    ],
) -> None:
    """Bring the meta store's schema up to date."""
    # Imported here, because a client must start fast and needs no database driver.
    from service.domain.errors import Conflict, Invalid, Unavailable  # noqa: PLC0415
    from service.meta_store.migrate import migrate as run  # noqa: PLC0415

    try:
        run(database_url)
    except Unavailable as error:
        output.complain({"detail": str(error)})
        raise typer.Exit(ExitCode.UNAVAILABLE) from None
    except Conflict as error:
        output.complain({"detail": error.message})
        raise typer.Exit(ExitCode.REFUSED) from None
    except Invalid as error:
        raise typer.BadParameter(str(error), param_hint="--database-url") from None
    output.say("the meta store is up to date")


@app.command()
def prepare() -> None:
    """Prepare the Java classes of workers, once after installing, so that each worker starts in half the time."""
    from service.embedded.java import find_java  # noqa: PLC0415 - a client must start fast
    from service.launchers.preparation import prepare as run  # noqa: PLC0415

    output.say("laying out the worker's classes, which takes up to a minute and happens once")
    try:
        run(find_java(os.environ))
    except OSError as error:
        output.complain({"detail": f"workers will take longer to start: {error}"})
        raise typer.Exit(ExitCode.REFUSED) from None


@app.command()
def sql(
    *,
    command: Annotated[
        str | None, typer.Option("-c", "--command", help="Statements to run; without it they are read from the input")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Run SQL: given with -c, piped in, or typed at a prompt."""
    with connected(url, token, as_json=as_json) as service:
        runner = StatementRunner(service, as_json)
        if command is not None:
            runner.script(command)
        elif sys.stdin.isatty():
            runner.prompt()
        else:
            runner.script(sys.stdin.read())


@app.command()
def jobs(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also jobs that were dropped or cancelled")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """List jobs and their progress."""
    with connected(url, token, as_json=as_json) as service:
        found = list(service.pages("/v1/jobs", state=None if everything else _LIVE_STATES, dropped=everything or None))
    if as_json:
        output.say_json(found)
        return
    if not found:
        output.say("no jobs: CREATE TABLE and CREATE MATERIALIZED VIEW start one (tidefill sql)")
        return
    columns = [("Id", "bigint"), ("Name", "text"), ("Kind", "text"), ("State", "text"), ("Progress", "text")]
    columns += [("Speed", "numeric"), ("ETA", "numeric"), ("Waiting for", "text")]
    output.show_rows(columns, (_job_row(job) for job in found))


@app.command("job")
def job_detail(*, job: Job, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Show one job: its progress, why it waits, its backfill order, and each of its scans."""
    with connected(url, token, as_json=as_json) as service:
        found = service.get(f"/v1/jobs/{service.job_called(job)}")
    if as_json:
        output.say_json(found)
    else:
        detail.show(found)


@app.command()
def watch(
    *,
    job: OneJob = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on when nothing is being created")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show the progress of every job that is being created, until none is."""
    with connected(url, token, as_json=as_json) as service:
        wanted = None if job is None else {service.job_called(job)}
        created = watching.watch(service, jobs=wanted, follow=follow, as_json=as_json)
    raise typer.Exit(ExitCode.OK if created else ExitCode.REFUSED)


@app.command()
def pause(
    *,
    job: OneJob = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Pause every backfill, or that of one job. Live changes continue."""
    with connected(url, token, as_json=as_json) as service:
        _switch(service, "pause", job, as_json=as_json)


@app.command()
def resume(
    *,
    job: OneJob = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Resume every backfill, or that of one job, with the rate limit that it had before."""
    with connected(url, token, as_json=as_json) as service:
        _switch(service, "resume", job, as_json=as_json)


@app.command()
def throttle(
    *,
    job: Job,
    limit: Annotated[str, typer.Argument(help="Rows per second and actor; 0 pauses; `auto`; `unlimited`")],
    fragment: Annotated[bool, typer.Option("--fragment", help="JOB is a fragment's id")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Limit how fast a job reads history."""
    if not limit.isdecimal() and limit not in {"auto", UNLIMITED}:
        raise typer.BadParameter("takes a whole number, `auto` or `unlimited`", param_hint="LIMIT")
    body = {"backfill_rate_limit": int(limit) if limit.isdecimal() else {"auto": "auto", UNLIMITED: None}[limit]}
    with connected(url, token, as_json=as_json) as service:
        path = f"/v1/fragments/{job}" if fragment else f"/v1/jobs/{service.job_called(job)}"
        _acknowledge(service.patch(path, body), f"{job} throttled to {limit}", as_json=as_json)


@app.command()
def rescale(
    *,
    job: Job,
    actors: Annotated[str, typer.Argument(help="A number; `adaptive` or `default`: as many as the worker has slots")],
    backfill: Annotated[bool, typer.Option("--backfill", help="Only while the job reads history")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Change the number of actors of a job, also while it reads history."""
    name = "backfill_parallelism" if backfill else "parallelism"
    body = {name: int(actors) if actors.isdecimal() else actors}
    with connected(url, token, as_json=as_json) as service:
        answer = service.patch(f"/v1/jobs/{service.job_called(job)}", body)
        _acknowledge(answer, f"{job} rescaled to {actors}", as_json=as_json)


@app.command()
def start(*, job: Job, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Start now every scan of a job that waits for its place in the backfill order."""
    with connected(url, token, as_json=as_json) as service:
        answer = service.post(f"/v1/jobs/{service.job_called(job)}/start-backfill")
        _acknowledge(answer, f"{job} started", as_json=as_json)


@app.command()
def cancel(
    *,
    names: Annotated[list[str], typer.Argument(help="Jobs that are being created, by id or name", metavar="JOB..")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Cancel jobs that are being created, and remove everything they made."""
    with connected(url, token, as_json=as_json) as service:
        for name in names:
            answer = service.post(f"/v1/jobs/{service.job_called(name)}/cancel")
            if as_json:
                output.say_json(answer)
            else:
                output.say(f"{name} cancelled")


@app.command()
def verify(
    *,
    job: Job,
    engine: Annotated[
        Literal["spark", "store"] | None,
        typer.Option(help="Who computes the query: a worker, or the state store itself, as for joins and aggregates"),
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Compare a view with its query over its upstreams at one epoch; exit code 4 if they differ."""
    with connected(url, token, as_json=as_json) as service:
        path = f"/v1/jobs/{service.job_called(job)}/verify" + ("" if engine is None else f"?engine={engine}")
        found = Live(service, quiet=as_json).run(lambda: service.post(path), title=f"verifying {job}")
    if as_json:
        output.say_json(found)
    else:
        _show_verification(job, found)
    raise typer.Exit(exit_code_of(found))


def main() -> None:
    """Run the command line."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


def _job_row(job: Mapping[str, Any]) -> list[object]:
    progress = job["progress"]
    moving = progress["phase"] == "backfilling"
    return [
        job["id"],
        job["name"],
        job["kind"],
        job["state"],
        progress["text"],
        speed(progress["rows_per_second"]) if moving else "",
        span(progress["eta_seconds"]) if moving else "",
        job["error"] or (detail.broken_text(job["broken"]) if job.get("broken") else _waits(job)),
    ]


def _waits(job: Mapping[str, Any]) -> str:
    return job["waiting"]["text"] if job.get("waiting") else job["progress"]["waiting_for"] or ""


def _switch(service: Service, verb: Literal["pause", "resume"], job: str | None, *, as_json: bool) -> None:
    """Pause or resume every job, or one."""
    if job is None:
        _acknowledge(service.post("/v1/mutations", {"type": verb}, wait="applied"), f"{verb}d", as_json=as_json)
    else:
        _acknowledge(service.post(f"/v1/jobs/{service.job_called(job)}/{verb}"), f"{job} {verb}d", as_json=as_json)


def _acknowledge(answer: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        output.say_json(answer)
        return
    output.say(f"{text} at epoch {answer['epoch']}")
    if answer.get("notice"):
        output.note(f"NOTICE: {answer['notice']}")


def _show_verification(job: str, found: dict[str, Any]) -> None:
    output.say(f"{job}: {'equal' if found['equal'] else 'DIFFERENT'} at epoch {found['epoch']}")
    if found.get("stale"):
        output.say(f"  NOT CURRENT: {found['stale']}")
    output.say(f"  view   {found['rows']:>12,} rows, digest {found['digest']}")
    output.say(f"  query  {found['expected_rows']:>12,} rows, digest {found['expected_digest']}")
    if found.get("keys_differing"):
        output.say(f"  differ {found['keys_differing']:>12,} keys, of which these are some:")
    for what in ("missing", "extra"):
        for row in found.get(f"rows_{what}", ()):
            output.say(f"  {what} {row}")
    for vnode in found["differences"]:
        for what in ("missing", "extra", "unequal"):
            for key in vnode[what]:
                shown = ", ".join("NULL" if part is None else part for part in key)
                output.say(f"  vnode {vnode['vnode']}: {what} ({shown})")
