"""The specification of a project: its fields, and what is refused of them."""

import ast
import glob
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from service.domain.errors import Invalid
from service.domain.pipeline_spec import FIELDS, FILES, pattern_of, unpacked

LEAST = {"name": "shop"}


@pytest.mark.parametrize(
    ("storage", "place"),
    [
        (None, None),
        ("/lake/shop/", "/lake/shop"),
        ("file:///lake/shop", "/lake/shop"),
        ("file:/lake/shop", "/lake/shop"),
        ("s3://lake/shop/", "s3://lake/shop"),
        ("s3a://lake/shop", "s3a://lake/shop"),
    ],
)
def test_a_storage_is_a_path_or_an_address(storage: str | None, place: str | None) -> None:
    assert unpacked({**LEAST, "storage": storage}).storage == place


def test_patterns_and_options_are_read() -> None:
    spec = unpacked(
        {
            **LEAST,
            "storage": "/lake",
            "libraries": [{"glob": {"include": "transformations/**"}}, {"glob": {"include": "one.sql"}}],
            "configuration": {
                "tidefill.commit_interval": "5 s",
                "spark.sql.shuffle.partitions": "8",
                "spark.executor.memory": "1g",
                "spark.sql.ansi.enabled": "TRUE",
                "spark.sql.session.timeZone": "UTC",
            },
        }
    )
    assert spec.patterns == ("transformations/**", "one.sql")
    assert spec.options == {"commit_interval": "5 s"}
    assert spec.ignored == ("spark.sql.shuffle.partitions", "spark.executor.memory")


@pytest.mark.parametrize(
    ("given", "prefixes"),
    [
        ({}, {("public",)}),
        ({"database": "Sales"}, {("sales",), ("public",)}),
        ({"schema": "sales"}, {("sales",), ("public",)}),
        (
            {"catalog": "main", "database": "sales"},
            {("sales",), ("main", "sales"), ("public",), ("main", "public")},
        ),
    ],
)
def test_what_may_stand_before_a_name(given: dict[str, str], prefixes: set[tuple[str, ...]]) -> None:
    assert unpacked({**LEAST, **given}).prefixes == prefixes


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "a specification is a map"),
        ([], "a specification is a map"),
        ({}, "the field name is missing"),
        ({**LEAST, "target": "x"}, "unexpected field target"),
        ({"name": 1}, "name is a text"),
        ({**LEAST, "storage": "relative"}, "storage is an absolute path"),
        ({**LEAST, "storage": "/"}, "storage is an absolute path"),
        ({**LEAST, "storage": "hdfs://x/y"}, "storage is an absolute path"),
        ({**LEAST, "libraries": "x"}, "libraries is a list"),
        ({**LEAST, "libraries": [{"file": "x.sql"}]}, "each of libraries"),
        ({**LEAST, "libraries": [{"glob": {"include": "a/**/*.sql"}}]}, "no pattern of a library"),
        ({**LEAST, "libraries": [{"glob": {"include": "a/*.sql"}}]}, "no pattern of a library"),
        ({**LEAST, "libraries": [{"glob": {"include": "a*/**"}}]}, "no pattern of a library"),
        ({**LEAST, "libraries": [{"glob": {"include": "/etc/**"}}]}, "no pattern of a library"),
        ({**LEAST, "configuration": ["x"]}, "configuration is a map"),
        ({**LEAST, "configuration": {"a": 1}}, "configuration is a map of texts: quote a: 1"),
        ({**LEAST, "configuration": {"tidefill.speed": "1"}}, "there is no tidefill.speed"),
        ({**LEAST, "configuration": {"tidefill.s3.region": "x"}}, "tidefill.s3.region is an option of Delta tables"),
        ({**LEAST, "configuration": {"spark.sql.ansi.enabled": "false"}}, "is true here, not false"),
        ({**LEAST, "configuration": {"spark.sql.session.timeZone": "CET"}}, "is utc here, not CET"),
        ({**LEAST, "configuration": {"spark.sql.caseSensitive": "true"}}, "may change what a query means"),
    ],
)
def test_what_is_refused(given: Any, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        unpacked(given)


class RefusedBySpark(Exception):
    """What Spark's function raises here."""

    def __init__(self, **_: object) -> None:
        super().__init__()


def sparks_own() -> ast.Module:
    """The module of the installed Spark that reads specifications. It cannot be imported without its Connect client."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return ast.parse((Path(found.origin).parent / "pipelines" / "cli.py").read_text())


def test_fields_and_names_of_files_are_sparks() -> None:
    assigned = {
        node.targets[0].id: node.value
        for node in ast.walk(sparks_own())
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert ast.literal_eval(assigned["ALLOWED_FIELDS"]) == FIELDS
    assert tuple(ast.literal_eval(assigned["PIPELINE_SPEC_FILE_NAMES"])) == FILES


@pytest.mark.parametrize(
    "pattern",
    ["a.sql", "a/b.sql", "a/**", "a/b/**", "**", "a/**/**", "a/*", "a/*.sql", "a/**/*.sql", "a?/**", "[a]/**", "a**"],
)
def test_patterns_are_sparks(pattern: str) -> None:
    own = next(
        node
        for node in sparks_own().body
        if isinstance(node, ast.FunctionDef) and node.name == "validate_patch_glob_pattern"
    )
    spark: dict[str, Any] = {"glob": glob, "PySparkException": RefusedBySpark}
    exec(compile(ast.Module([own], []), "spark", "exec"), spark)
    outcomes: list[bool] = []
    for read in (spark["validate_patch_glob_pattern"], pattern_of):
        try:
            read(pattern)
            outcomes.append(True)
        except (RefusedBySpark, Invalid):
            outcomes.append(False)
    assert outcomes[0] == outcomes[1]
