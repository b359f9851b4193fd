"""Commands about who may call the service and who did: API tokens, the audit trail, and `psql` with a login to read."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final, Literal, NoReturn

import typer

from service.cli import output
from service.cli.client import DEFAULT_URL, ExitCode, Json, Service, Token, Url, connected

commands = typer.Typer()
tokens = typer.Typer(help="Make, list and revoke API tokens. Needs the role admin.", no_args_is_help=True)
commands.add_typer(tokens, name="token")

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
Name = Annotated[str, typer.Argument(help="A token's name, or its id", metavar="TOKEN")]


@tokens.command()
def create(
    *,
    name: Annotated[str, typer.Argument(help="What the token is for; the audit trail shows it", metavar="NAME")],
    role: Annotated[
        Literal["viewer", "operator", "admin"],
        typer.Option(help="viewer: reads. operator: also changes data, views and jobs. admin: everything"),
    ] = "viewer",
    expires: Annotated[
        str | None, typer.Option(help="For how long it is valid: 90d, 12h; without it, for ever")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Make an API token and print it. It is not stored and cannot be shown again."""
    body = {"name": name, "role": role, "expires_in_seconds": None if expires is None else _seconds(expires)}
    with connected(url, token, as_json=as_json) as service:
        made = service.post("/v1/tokens", body)
    if as_json:
        output.say_json(made)
    else:
        output.say(made["text"])


@tokens.command("list")
def list_tokens(*, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List API tokens, with their roles and their last use."""
    with connected(url, token, as_json=as_json) as service:
        found = list(service.pages("/v1/tokens"))
    if as_json:
        output.say_json(found)
        return
    if not found:
        output.say("no tokens: tidefill token create makes one")
        return
    names = ("id", "name", "role", "created_by", "expires_at", "last_used_at", "revoked_at")
    columns = [(name.replace("_", " ").capitalize(), "bigint" if name == "id" else "text") for name in names]
    output.show_rows(columns, ([one[name] for name in names] for one in found))


@tokens.command()
def revoke(*, name: Name, url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """Revoke an API token. It is refused within 5 seconds."""
    with connected(url, token, as_json=as_json) as service:
        id_ = int(name) if name.isdigit() else _called(service, name)
        answer = service.delete(f"/v1/tokens/{id_}")
    if as_json:
        output.say_json(answer)
    else:
        output.say(f"{answer['name']} revoked")


@commands.command()
def audit(
    *,
    actor: Annotated[str | None, typer.Option(help="Only what this caller did, as `token 7 (ci)`")] = None,
    target: Annotated[str | None, typer.Option(help="Only what was done to this job, relation, source ..")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many entries to show")] = 50,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show who changed what, newest first, and which calls were refused for want of a role."""
    with connected(url, token, as_json=as_json) as service:
        found = list(islice(service.newest("/v1/audit", limit=min(limit, 1000), actor=actor, target=target), limit))
    if as_json:
        output.say_json(found)
        return
    columns = [(title, "text") for title in ("At", "Actor", "Role", "Outcome", "Call", "Target", "Statement")]
    output.show_rows(columns, map(_entry, found))


def _entry(one: Mapping[str, Any]) -> list[object]:
    call = f"{one['method']} {one['route']}"
    return [one["at"], one["actor"], one["role"], one["outcome"], call, one["target"] or "", one["statement"] or ""]


def _called(service: Service, name: str) -> int:
    """Return the id of the token with this name that is not revoked."""
    found = [one["id"] for one in service.pages("/v1/tokens") if one["name"] == name and one["revoked_at"] is None]
    if not found:
        output.complain({"detail": f'there is no token "{name}" that is not revoked'})
        raise typer.Exit(ExitCode.REFUSED)
    return int(found[0])


@commands.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def psql(
    context: typer.Context,
    *,
    dsn: Annotated[
        bool, typer.Option("--dsn", "--print", help="Print the connection string with its password, and run nothing")
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Open psql with a login that can read tables and views, but not write. Further arguments go to psql."""
    with connected(url, token) as service:
        login = service.get("/v1/read-login", password=True)
    if dsn:
        output.say(login["dsn"])
        return
    _run_psql(login, context.args)


def _run_psql(login: Mapping[str, Any], arguments: Sequence[str]) -> NoReturn:
    """Replace this process by `psql`. The password goes through the environment, which other users of this machine
    cannot see.
    """
    program = shutil.which("psql")
    if program is None:
        output.complain(
            {"detail": "psql is not installed; `tidefill psql --dsn` prints what any other client of Postgres needs"}
        )
        raise typer.Exit(ExitCode.USAGE)
    places = {"PGHOST": login["host"], "PGPORT": str(login["port"]), "PGDATABASE": login["database"]}
    secrets = {"PGUSER": login["user"], "PGPASSWORD": login["password"]}
    os.execve(program, [program, *arguments], {**os.environ, **places, **secrets})  # noqa: S606 - no shell


def _seconds(text: str) -> int:
    given = re.fullmatch(r"([1-9][0-9]{0,8})([smhdw])", text)
    if given is None:
        raise typer.BadParameter("takes a number and a unit, as 30m, 12h, 90d or 2w", param_hint="--expires")
    return int(given[1]) * _SECONDS[given[2]]
