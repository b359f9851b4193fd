"""`tidefill psql`: run the installed `psql` with the login that may read tables and views."""

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import typer

from service.cli import output
from service.cli.client import ExitCode


def run(login: Mapping[str, Any], arguments: Sequence[str]) -> NoReturn:
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
