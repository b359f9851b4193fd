"""`tidefill pipeline`: which files it reads, what it asks and says, what it changes, and how it ends."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from service.cli.app import app
from service.cli.pipeline import read_project
from service.domain.cutting import cut
from service.domain.errors import Invalid
from tests.support.canned_service import Command, Routes

SPEC = "name: shop\nstorage: file:///lake\nlibraries:\n  - glob:\n      include: transformations/**\n"
VIEWS = """CREATE MATERIALIZED VIEW a AS SELECT id FROM orders;
CREATE MATERIALIZED VIEW b AS SELECT id FROM a;
"""
A = """CREATE MATERIALIZED VIEW "a" USING delta LOCATION '/lake/a{}' AS SELECT id FROM orders"""
B = """CREATE MATERIALIZED VIEW "b" USING delta LOCATION '/lake/b{}' AS SELECT id FROM a"""
DONE: dict[str, Any] = {"tag": "OK", "columns": [], "rows": [], "notices": [], "session": {}, "truncated": False}
IDS = {"orders": 1, "a": 2, "b": 3}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the present directory."""
    (tmp_path / "spark-pipeline.yml").write_text(SPEC)
    (tmp_path / "transformations" / "deep").mkdir(parents=True)
    (tmp_path / "transformations" / "deep" / "views.sql").write_text(VIEWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def relation(name: str, definition: str, state: str = "Created") -> dict[str, Any]:
    kind = "table" if name == "orders" else "materialized view"
    return {"name": name, "kind": kind, "definition": definition, "state": state, "job": IDS[name]}


def job(name: str, statement: str, state: str = "Created", error: str | None = None) -> dict[str, Any]:
    return {"id": IDS.get(name, 9), "name": name, "statement": statement, "state": state, "error": error}


ORDERS = relation("orders", "CREATE TABLE orders (id int)")


def holds(routes: Routes, *relations: dict[str, Any], jobs: tuple[dict[str, Any], ...] = ()) -> None:
    """Have the service hold these relations, and create and wait at once."""
    routes.on("GET", "/v1/relations", {"items": [ORDERS, *relations], "next": None})
    known = tuple(job(one["name"], one["definition"], one["state"]) for one in relations)
    routes.on("GET", "/v1/jobs", {"items": [*known, *jobs], "next": None})
    routes.on("POST", "/v1/sql", DONE)
    routes.on("GET", "/v1/ddl-progress", [])
    for name, id_ in IDS.items():
        routes.on("GET", f"/v1/relations/{name}", relation(name, ""))
        routes.on("GET", f"/v1/jobs/{id_}", {"job": job(name, "")})


def said(routes: Routes) -> list[str]:
    """Return the statements that were sent, but the question for logical views."""
    return [body["sql"] for method, path, body in routes.calls if (method, path) == ("POST", "/v1/sql")][1:]


def test_what_is_missing_is_created_in_order_and_waited_for(command: Command, routes: Routes, project: Path) -> None:
    holds(routes)
    ended = command("pipeline", "run")
    assert ended.exit_code == 0, ended.output
    assert said(routes) == [
        A.format(""),
        'WAIT MATERIALIZED VIEW "a"',
        B.format(""),
        'WAIT MATERIALIZED VIEW "b"',
    ]
    assert "2 create" in ended.stdout
    assert "a: Created" in ended.stdout


@pytest.mark.parametrize("name", ["plan", "dry-run"])
def test_a_plan_changes_nothing(command: Command, routes: Routes, project: Path, name: str) -> None:
    holds(routes)
    ended = command("pipeline", name, "spark-pipeline.yml", "--json")
    assert ended.exit_code == 0, ended.output
    assert said(routes) == []
    assert json.loads(ended.stdout) == [
        {"name": "a", "kind": "materialized view", "action": "create", "why": "", "location": "/lake/a"},
        {"name": "b", "kind": "materialized view", "action": "create", "why": "", "location": "/lake/b"},
    ]


def test_what_is_there_stays(command: Command, routes: Routes, project: Path) -> None:
    held = "create  materialized view A using delta location '/lake/a__3' as select ID from orders -- as typed"
    holds(routes, relation("a", held), relation("b", B.format("")))
    ended = command("pipeline", "run")
    assert ended.exit_code == 0, ended.output
    assert said(routes) == []
    assert "2 unchanged" in ended.stdout


def test_a_change_is_refused_and_nothing_is_done(command: Command, routes: Routes, project: Path) -> None:
    holds(routes, relation("a", A.format("").replace("id FROM", "id, 1 AS x FROM")))
    ended = command("pipeline", "run")
    assert ended.exit_code == 1
    assert said(routes) == []
    assert "--replace drops it" in ended.stdout


def test_a_change_is_replaced_with_what_reads_it(command: Command, routes: Routes, project: Path) -> None:
    old = A.format("").replace("id FROM", "id, 1 AS x FROM")
    gone = job("b", B.format("__4"), "Dropped")
    holds(routes, relation("a", old), relation("b", B.format("")), jobs=(gone,))
    ended = command("pipeline", "run", "--replace")
    assert ended.exit_code == 0, ended.output
    assert said(routes) == [
        'DROP MATERIALIZED VIEW "b"',
        'DROP MATERIALIZED VIEW "a"',
        A.format("__2"),
        'WAIT MATERIALIZED VIEW "a"',
        B.format("__5"),
        'WAIT MATERIALIZED VIEW "b"',
    ]


def test_a_run_goes_on_after_one_that_was_cut_off(command: Command, routes: Routes, project: Path) -> None:
    """Both were dropped and one is created anew: the tables of the dropped ones are not written again."""
    gone = (job("a", A.format(""), "Dropped"), job("b", B.format(""), "Dropped"))
    holds(routes, relation("a", A.format("__2"), "Creating"), jobs=gone)
    ended = command("pipeline", "run")
    assert ended.exit_code == 0, ended.output
    assert said(routes) == ['WAIT MATERIALIZED VIEW "a"', B.format("__2"), 'WAIT MATERIALIZED VIEW "b"']


def test_without_waiting_what_reads_a_new_view_is_left(command: Command, routes: Routes, project: Path) -> None:
    holds(routes)
    ended = command("pipeline", "run", "--no-wait")
    assert ended.exit_code == 0, ended.output
    assert said(routes) == [A.format("")]
    assert "for another run: b" in ended.stdout


def test_a_failed_view_ends_the_run(command: Command, routes: Routes, project: Path) -> None:
    holds(routes)
    routes.on("GET", "/v1/jobs/2", {"job": job("a", "", "Failed", "no space")})
    ended = command("pipeline", "run")
    assert ended.exit_code == 1
    assert said(routes) == [A.format("")]
    assert "a: Failed: no space" in ended.stdout


def test_a_failed_view_is_replaced(command: Command, routes: Routes, project: Path) -> None:
    holds(routes, relation("a", A.format(""), "Failed"))
    routes.on("GET", "/v1/jobs", {"items": [job("a", A.format(""), "Failed", "no space")], "next": None})
    ended = command("pipeline", "plan")
    assert ended.exit_code == 1
    assert "it failed: no space" in ended.stdout
    assert command("pipeline", "plan", "--replace").exit_code == 0


def test_a_refusal_of_the_service_has_the_place(command: Command, routes: Routes, project: Path) -> None:
    holds(routes)
    refusal = httpx.Response(422, json={"type": "urn:x", "status": 422, "detail": "/lake/a has rows already"})
    routes.on("POST", "/v1/sql", DONE, refusal)
    ended = command("pipeline", "run")
    assert ended.exit_code == 1
    assert ended.stderr.splitlines()[-1] == "error: transformations/deep/views.sql:1: /lake/a has rows already"


def test_logical_views_are_asked_for(command: Command, routes: Routes, project: Path) -> None:
    """One that is not of the project reads a view of it."""
    holds(routes, relation("a", A.format("")), relation("b", B.format("")))
    routes.on("POST", "/v1/sql", {**DONE, "rows": [["stranger", "CREATE VIEW stranger AS SELECT id FROM b"]]})
    ended = command("pipeline", "plan", "--full-refresh", "a")
    assert ended.exit_code == 1
    assert "stranger reads it" in ended.stdout


def test_settings_without_effect_are_named(command: Command, routes: Routes, project: Path) -> None:
    (project / "spark-pipeline.yml").write_text(SPEC + "configuration:\n  spark.executor.memory: 1g\n")
    holds(routes)
    assert "spark.executor.memory has no effect here" in command("pipeline", "plan").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["run", "nowhere.yml"], 2, "there is no file nowhere.yml"),
        (["run", "--full-refresh", "a", "--full-refresh-all"], 2, "takes no --full-refresh"),
        (["run", "--full-refresh", "a,z"], 2, "the project has no z"),
    ],
)
def test_wrong_use(command: Command, project: Path, arguments: list[str], code: int, why: str) -> None:
    ended = command("pipeline", *arguments)
    assert ended.exit_code == code
    assert why in " ".join(ended.output.replace("│", "").split())


def test_a_specification_is_found_in_a_folder_above(
    command: Command, routes: Routes, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds(routes)
    monkeypatch.chdir(project / "transformations" / "deep")
    assert command("pipeline", "plan").exit_code == 0
    (project / "spark-pipeline.yaml").write_text(SPEC)
    ended = command("pipeline", "plan")
    assert ended.exit_code == 1
    assert "has both" in ended.stderr


@pytest.mark.parametrize(
    ("spec", "file", "why"),
    [
        ("name: [", None, "is no YAML"),
        ("storage: /lake", None, "spark-pipeline.yml: the field name is missing"),
        ("name: shop", None, "libraries, which is empty"),
        (SPEC.replace("transformations", "nothing"), None, "no file matches nothing/**"),
        (SPEC, "it.txt", "transformations/it.txt: a project has files of SQL (.sql) and of Python (.py)"),
    ],
)
def test_projects_that_are_refused(project: Path, spec: str, file: str | None, why: str) -> None:
    (project / "spark-pipeline.yml").write_text(spec)
    if file is not None:
        (project / "transformations" / file).write_text("")
    with pytest.raises(Invalid) as refused:
        read_project(project / "spark-pipeline.yml")
    assert why in refused.value.message


def test_a_file_that_is_no_text_is_named(project: Path) -> None:
    (project / "transformations" / "a.sql").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match=r"a\.sql cannot be read"):
        read_project(project / "spark-pipeline.yml")


def test_files_are_those_that_spark_finds(project: Path) -> None:
    folder = project / "transformations"
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("")
    (folder / "b.sql").write_text("")
    (project / "outside.sql").write_text("")
    (project / "spark-pipeline.yml").write_text(SPEC + "  - glob:\n      include: outside.sql\n")
    (folder / "c.py").write_text("")
    found = read_project(project / "spark-pipeline.yml")
    paths = ["transformations/b.sql", "transformations/deep/views.sql", "outside.sql"]
    assert [file.path for file in found.files] == paths
    assert found.scripts == [Path("transformations/c.py")]


def test_a_project_that_init_makes_can_be_planned(
    command: Command, routes: Routes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(app, ["pipeline", "init", "shop"])
    assert made.exit_code == 0, made.output
    assert "cd shop\ntidefill pipeline run" in made.stdout
    assert CliRunner().invoke(app, ["pipeline", "init", "shop"]).exit_code == 2
    holds(routes)
    monkeypatch.chdir(tmp_path / "shop")
    planned = json.loads(command("pipeline", "plan", "--json").stdout)
    assert [one["action"] for one in planned] == ["create", "create"]


def test_a_long_definition_is_asked_for_whole(command: Command, routes: Routes, project: Path) -> None:
    """Lists show its beginning."""
    place, long = project / "transformations" / "deep" / "views.sql", ", ".join(f"id AS i{n}" for n in range(400))
    place.write_text(f"CREATE MATERIALIZED VIEW a AS SELECT {long} FROM orders;\n")
    whole = A.format("").replace("SELECT id", f"SELECT {long}")
    listed = cut(whole)
    assert listed != whole
    holds(routes, relation("a", listed), jobs=())
    routes.on("GET", "/v1/relations/a", relation("a", whole))
    ended = command("pipeline", "run")
    assert ended.exit_code == 0, ended.output
    assert said(routes) == []
