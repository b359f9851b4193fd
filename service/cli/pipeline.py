"""`tidefill pipeline`: run the projects of Spark Declarative Pipelines on a service.

The plan is made by `service.domain.pipelines`. This module finds the files and prints; `service.cli.pipeline_run` asks
the service and changes it.
"""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from service.cli import output
from service.cli.client import DEFAULT_URL, ExitCode, Json, Token, Url, connected

if TYPE_CHECKING:
    from service.cli.pipeline_run import Planned, Project
    from service.domain.pipeline_spec import Spec
    from service.domain.pipelines import Asked

commands = typer.Typer(
    help="Run projects of Spark Declarative Pipelines: spark-pipeline.yml, and files of SQL and Python.",
    no_args_is_help=True,
)
SpecPath = Annotated[
    Path | None,
    typer.Argument(help="The specification; without it, spark-pipeline.yml here or in a folder above", metavar="SPEC"),
]
Replace = Annotated[bool, typer.Option("--replace", help="Drop what changed, with what reads it, and create it again")]
FullRefresh = Annotated[
    list[str] | None,
    typer.Option("--full-refresh", help="Drop these datasets, with what reads them, and create them again: a,b"),
]
FullRefreshAll = Annotated[bool, typer.Option("--full-refresh-all", help="Drop all datasets and create them again")]
_COLUMNS: Final = [("What", "text"), ("Kind", "text"), ("Action", "text"), ("Why", "text")]
_MEMBERS: Final = ("name", "kind", "action", "why", "location")
_SPEC: Final = """name: {name}
# A folder or s3://bucket/path: there the views are Delta tables. Without it their rows are in Postgres.
# storage: /data/lake/{name}
libraries:
  - glob:
      include: transformations/**
"""
_EXAMPLE: Final = """CREATE MATERIALIZED VIEW example_numbers AS
SELECT number, number * number AS square FROM VALUES (1), (2), (3) AS numbers(number);

CREATE TEMPORARY VIEW example_odd_numbers AS
SELECT number, square FROM example_numbers WHERE number % 2 = 1;
"""


@commands.command()
def run(
    spec: SpecPath = None,
    *,
    replace: Replace = False,
    full_refresh: FullRefresh = None,
    full_refresh_all: FullRefreshAll = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until views are created; what reads them is left for a run")
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Create what a project defines and the service lacks, and replace what changed.

    Nothing is done, and the exit code is 1, if anything is refused.
    """
    asked = _asked(full_refresh or (), replace=replace, everything=full_refresh_all)
    raise typer.Exit(_perform(spec, asked, (url, token), dry=False, wait=not no_wait, as_json=as_json))


@commands.command("dry-run")
@commands.command()
def plan(
    spec: SpecPath = None,
    *,
    replace: Replace = False,
    full_refresh: FullRefresh = None,
    full_refresh_all: FullRefreshAll = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Show what `run` would do, and change nothing. Exit code 1 if anything is refused."""
    asked = _asked(full_refresh or (), replace=replace, everything=full_refresh_all)
    raise typer.Exit(_perform(spec, asked, (url, token), dry=True, wait=False, as_json=as_json))


@commands.command()
def init(name: Annotated[str, typer.Argument(help="The project and its folder, which is made here")]) -> None:
    """Make a small project, with a specification and an example."""
    folder = Path.cwd() / name
    if folder.exists():
        raise typer.BadParameter(f"{name} exists already", param_hint="NAME")
    transformations = folder / "transformations"
    transformations.mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(_SPEC.format(name=name))
    (transformations / "example.sql").write_text(_EXAMPLE)
    output.say(f"{name} is made. To run it:\ncd {shlex.quote(name)}\ntidefill pipeline run")


def _asked(full_refresh: Iterable[str], *, replace: bool, everything: bool) -> "Asked":
    # Imported here, because a client must start fast.
    from service.domain.pipelines import Asked  # noqa: PLC0415

    names = frozenset(name.strip() for given in full_refresh for name in given.split(",") if name.strip())
    if everything and names:
        raise typer.BadParameter("--full-refresh-all takes no --full-refresh beside it")
    return Asked(replace=replace, anew=names, everything=everything)


def _perform(
    spec: Path | None, asked: "Asked", service_at: tuple[str, str | None], *, dry: bool, wait: bool, as_json: bool
) -> ExitCode:
    # Imported here, because a client must start fast, and only these commands need the language.
    from service.cli.pipeline_run import carry_out, defined, look  # noqa: PLC0415
    from service.domain.errors import Refused  # noqa: PLC0415

    with connected(*service_at, as_json=as_json) as service:
        try:
            project = read_project(_found(spec))
            datasets = defined(service, project)
        except Refused as error:
            output.complain({"detail": error.message}, as_json=as_json)
            return ExitCode.REFUSED
        if unknown := asked.anew - {one.name for one in datasets}:
            raise typer.BadParameter(f"the project has no {', '.join(sorted(unknown))}", param_hint="--full-refresh")
        planned = look(service, datasets, asked)
        _show(planned, project.spec, as_json=as_json)
        if planned.is_refused:
            return ExitCode.REFUSED
        return ExitCode.OK if dry else carry_out(service, planned, wait=wait, as_json=as_json)


def _found(given: Path | None) -> Path:
    """Return the specification, as Spark finds it. Raises typer's errors and Refused."""
    from service.domain.errors import NotFound  # noqa: PLC0415 - a client must start fast
    from service.domain.pipeline_spec import FILES  # noqa: PLC0415 - see above

    if given is not None:
        if not given.is_file():
            raise typer.BadParameter(f"there is no file {given}", param_hint="SPEC")
        return given
    here = Path.cwd()
    for folder in (here, *here.parents):
        found = [folder / name for name in FILES if (folder / name).is_file()]
        if len(found) > 1:
            raise NotFound(f"{folder} has both {' and '.join(FILES)}: name one of them")
        if found:
            return found[0]
    raise NotFound(f"there is no {FILES[-1]} in {here} and in no folder above: tidefill pipeline init makes one")


def read_project(spec: Path) -> "Project":
    """Return a project as a specification tells it. Raises Refused."""
    import yaml  # noqa: PLC0415 - only these commands need it

    from service.cli.pipeline_run import Project  # noqa: PLC0415 - a client must start fast
    from service.domain.errors import Invalid  # noqa: PLC0415 - a client must start fast
    from service.domain.pipeline_spec import unpacked  # noqa: PLC0415 - see above
    from service.sql.pipelines.datasets import File  # noqa: PLC0415 - see above

    try:
        found = unpacked(yaml.safe_load(_text(spec)))
    except yaml.YAMLError as error:
        raise Invalid(f"{spec} is no YAML: {error}") from None
    except Invalid as error:
        raise Invalid(f"{spec}: {error.message}") from None
    root = spec.parent.resolve()
    paths = _paths(root, found.patterns)
    files = [File(str(one.relative_to(root)), _text(one)) for one in paths if one.suffix == ".sql"]
    return Project(found, root, files, [one.relative_to(root) for one in paths if one.suffix == ".py"])


def _paths(root: Path, patterns: Iterable[str]) -> list[Path]:
    from service.domain.errors import Invalid  # noqa: PLC0415 - a client must start fast

    found: dict[Path, None] = {}
    for pattern in patterns:
        matching = root.glob(f"{pattern}/*" if pattern.endswith("/**") else pattern)
        found |= dict.fromkeys(sorted(one for one in matching if one.is_file() and "__pycache__" not in one.parts))
    for path in found:
        if path.suffix not in {".sql", ".py"}:
            raise Invalid(f"{path.relative_to(root)}: a project has files of SQL (.sql) and of Python (.py)")
    if not found:
        raise Invalid(f"no file matches {', '.join(patterns) or 'libraries, which is empty'}")
    return list(found)


def _text(path: Path) -> str:
    """Return the text of a file. Raises Invalid if it cannot be read."""
    from service.domain.errors import Invalid  # noqa: PLC0415 - a client must start fast

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} cannot be read: {error}") from None


def _show(planned: "Planned", spec: "Spec", *, as_json: bool) -> None:
    rows = [
        (step.name, str(step.dataset.kind), str(step.action), step.why, planned.location(step))
        for step in planned.steps
    ]
    if as_json:
        output.say_json([dict(zip(_MEMBERS, row, strict=True)) for row in rows])
        return
    for name in spec.ignored:
        output.note(f"NOTICE: {name} has no effect here")
    shown = ((*row, "; ".join(filter(None, (why, at and f"at {at}")))) for *row, why, at in rows)
    output.show_rows(_COLUMNS, shown)
    output.say(said(planned.counts))


def said(counts: Mapping[str, int]) -> str:
    """Return how many datasets have each action."""
    return ", ".join(f"{count} {action}" for action, count in counts.items()) or "nothing is defined"
