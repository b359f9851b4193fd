"""Options and arguments that several commands share."""

from typing import Annotated

import typer

Url = Annotated[str, typer.Option("--url", envvar="TIDEFILL_URL", help="Where the service is")]
Token = Annotated[
    str | None, typer.Option("--token", envvar="TIDEFILL_API_TOKEN", help="The API token", show_envvar=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts")]
Job = Annotated[str, typer.Argument(help="A job's id, or the name of what it creates", metavar="JOB")]
OneJob = Annotated[str | None, typer.Argument(help="Only this job (id or name)", metavar="[JOB]")]
