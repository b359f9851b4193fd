"""Ask a service what it holds of a project, and change what the plan says."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from service.cli import output, watching
from service.cli.client import ExitCode, RefusedError, Service
from service.cli.pipeline_python import definitions
from service.domain.cutting import is_cut
from service.domain.errors import Invalid
from service.domain.pipeline_spec import Spec
from service.domain.pipelines import (
    Action,
    Asked,
    Dataset,
    Held,
    Step,
    numbered,
    place_of,
    planned,
    to_create,
    to_drop,
)
from service.protocol.quoting import quoted
from service.protocol.relation import RelationKind
from service.sql.pipelines.columns import Columns, columns_of, spark_columns
from service.sql.pipelines.comparing import reads_of, shape_of
from service.sql.pipelines.datasets import File, datasets_of

_VIEWS: Final = "SELECT name, definition FROM rw_catalog.rw_views ORDER BY name"
_ENDED: Final = frozenset({"Created", "Failed"})
_BACKGROUND: Final = {"background_ddl": "true"}


@dataclass(frozen=True, slots=True)
class Project:
    """A specification, the folder in which it is, and the files that it includes: `scripts` are in Python."""

    spec: Spec
    root: Path
    files: Sequence[File]
    scripts: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, with what it was made from. `numbers` are those of new Delta tables, by name of the dataset."""

    steps: tuple[Step, ...]
    held: Mapping[str, Held]
    numbers: Mapping[str, int]

    @property
    def is_refused(self) -> bool:
        """Whether a part of the project is refused: then nothing is done."""
        return any(step.action is Action.REFUSE for step in self.steps)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many datasets have each action."""
        return Counter(str(step.action) for step in self.steps)

    def location(self, step: Step) -> str | None:
        """Return where a new Delta table goes, None if there is none."""
        base, makes = step.dataset.base, step.action in {Action.CREATE, Action.REPLACE}
        return place_of(base, self.numbers[step.name]) if base is not None and makes else None


@dataclass(frozen=True, slots=True)
class _Found:
    """An object of a service as its catalog shows it."""

    kind: RelationKind
    definition: str
    state: str
    error: str | None


def defined(service: Service, project: Project) -> tuple[Dataset, ...]:
    """Return what a project defines, what is refused included. Raises Invalid if Python definitions cannot run."""
    in_sql = datasets_of(project.files, project.spec)
    known = {one.name: one for one in in_sql}

    def columns(name: str) -> Columns:
        return columns_of(known[name]) if name in known else _columns(service, name)

    files, refused = definitions(project.root, project.scripts, columns)
    return (*(datasets_of([*project.files, *files], project.spec) if files else in_sql), *refused)


def _columns(service: Service, name: str) -> Columns:
    """Return the columns of a relation or a logical view of the service. Raises Invalid if there is none."""
    try:
        found = service.get(f"/v1/relations/{quote(name, safe='')}")["columns"]
    except RefusedError as error:
        if error.status != 404:
            raise
        try:
            found = service.post("/v1/sql", {"sql": f"SELECT * FROM {quoted(name)} LIMIT 0"})["columns"]
        except RefusedError:
            raise Invalid(f'it reads "{name}", which neither the project defines nor the service has') from None
    return spark_columns((one["name"], one["type"]) for one in found)


def look(service: Service, datasets: Sequence[Dataset], asked: Asked) -> Planned:
    """Return the plan for what the service holds now."""
    # Dropped jobs tell where Delta tables were left.
    jobs = list(service.pages("/v1/jobs", dropped=any(one.base is not None for one in datasets) or None))
    found = _objects(service, {job["id"]: job for job in jobs})
    own = {one.name: one for one in datasets}
    held = {name: _held(one, own.get(name), own) for name, one in found.items()}
    numbers = {one.name: _free(service, one, jobs) for one in datasets if one.base is not None}
    return Planned(planned(datasets, held, asked), held, numbers)


def _objects(service: Service, jobs: Mapping[int, Mapping[str, Any]]) -> Mapping[str, _Found]:
    found: dict[str, _Found] = {}
    for one in service.pages("/v1/relations"):
        job = jobs.get(one["job"], {})
        error = job.get("error") or (one["state"] == "Failed" and "its job shows why") or None
        definition: str = one["definition"]
        if is_cut(definition):
            definition = service.get(f"/v1/relations/{quote(one['name'], safe='')}")["definition"]
        found[one["name"]] = _Found(RelationKind(one["kind"]), definition, one["state"], error)
    answer = service.post("/v1/sql", {"sql": _VIEWS, "session": {"row_limit": "100000"}})
    for name, definition in answer["rows"]:
        found[name] = _Found(RelationKind.VIEW, definition, "Created", None)
    return found


def _held(one: _Found, dataset: Dataset | None, names: Collection[str]) -> Held:
    failed = one.error if one.state == "Failed" else None
    same = dataset is not None and _is_same(one.definition, dataset)
    return Held(one.kind, reads_of(one.definition, names), same, one.state not in _ENDED, failed)


def _is_same(definition: str, dataset: Dataset) -> bool:
    if dataset.fault is not None:
        return False
    try:
        there, wanted = shape_of(definition), shape_of(dataset.created_at(1))
    except Invalid:
        return False
    return there is not None and wanted is not None and there.is_like(wanted, dataset.base)


def _free(service: Service, dataset: Dataset, jobs: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of the next Delta table of a dataset: no job has ever written to a table with it."""
    statements = [_statement(service, job) for job in jobs if job["name"] == dataset.name]
    used = [_number(one, dataset.base or "") for one in statements]
    return max(used, default=0) + 1


def _statement(service: Service, job: Mapping[str, Any]) -> str:
    """Return the whole statement of a job, of which lists show the beginning."""
    listed: str = job["statement"]
    return service.get(f"/v1/jobs/{job['id']}")["job"]["statement"] if is_cut(listed) else listed


def _number(statement: str, base: str) -> int:
    try:
        shape = shape_of(statement)
    except Invalid:
        return 0
    return 0 if shape is None or shape.location is None else numbered(shape.location, base) or 0


def carry_out(service: Service, plan: Planned, *, wait: bool, as_json: bool) -> ExitCode:
    """Drop and create what the plan says. Without `wait`, leave what reads a view that is still being created."""
    run = _Run(service, plan, as_json)
    for name in to_drop(plan.steps, plan.held):
        kind = plan.held[name].kind
        run.say(f"drop {kind} {name}")
        run.sql(f"DROP {kind.upper()} {quoted(name)}")
    run.going = {name: one.kind for name, one in plan.held.items() if one.creating and run.concerns(name)}
    left: list[str] = []
    for level in to_create(plan.steps):
        if wait and not run.created({name for one in level for name in one.reads}):
            return ExitCode.REFUSED
        ready = [one for one in level if not one.reads & (run.going.keys() | {*left})]
        left += [one.name for one in level if one not in ready]
        for one in ready:
            run.create(one)
    if left:
        run.say(f"left until what they read is created, for another run: {', '.join(left)}")
    return ExitCode.OK if not wait or run.created(run.going) else ExitCode.REFUSED


@dataclass(slots=True)
class _Run:
    """Changes a service. `going` are the objects whose jobs still run, with their kinds."""

    service: Service
    plan: Planned
    as_json: bool
    going: dict[str, RelationKind] = field(default_factory=dict[str, RelationKind])

    def say(self, text: str) -> None:
        if not self.as_json:
            output.say(text)

    def sql(self, statement: str) -> None:
        answer = self.service.post("/v1/sql", {"sql": statement, "session": _BACKGROUND})
        for notice in answer["notices"]:
            output.note(f"NOTICE: {notice}")

    def create(self, one: Dataset) -> None:
        """Start the job of a dataset. Raises RefusedError with its place."""
        statement = one.created_at(self.plan.numbers.get(one.name, 1))
        self.say(f"create {one.kind} {one.name}")
        try:
            self.sql(statement)
        except RefusedError as error:
            detail = f"{one.place}: {error.problem.get('detail')}"
            raise RefusedError({**error.problem, "detail": detail}, error.status) from None
        if one.kind is not RelationKind.VIEW:
            self.going[one.name] = one.kind

    def concerns(self, name: str) -> bool:
        """Whether the project defines or reads an object."""
        return any(name == step.name or name in step.dataset.reads for step in self.plan.steps)

    def created(self, names: Collection[str]) -> bool:
        """Wait for those of these jobs that still run, with a bar for each, until others can read what they make.

        Return whether all of them are created.
        """
        waited = [name for name in self.going if name in names]
        if not waited:
            return True
        ids = {self.service.job_called(name) for name in waited}
        if not watching.watch(self.service, jobs=ids, follow=False, as_json=self.as_json):
            return False
        for name in waited:
            # A job is created a moment before others can read its rows.
            self.sql(f"WAIT {self.going.pop(name).upper()} {quoted(name)}")
        return True
