"""Read the specification of a project of Spark Declarative Pipelines: its fields, and what each means here.

The fields, their names and the patterns of `libraries` are those of Spark 4.2. A field that Spark does not know is
refused, as Spark refuses it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from service.domain.errors import Invalid

FILES: Final = ("spark-pipeline.yaml", "spark-pipeline.yml")
"""The names under which Spark looks for a specification."""
FIELDS: Final = frozenset({"name", "storage", "catalog", "database", "schema", "configuration", "libraries"})
_OPTIONS: Final = frozenset({"commit_interval", "s3.endpoint", "s3.region", "s3.access.key", "s3.secret.key"})
_OWN: Final = "tidefill."
_MAGIC: Final = re.compile(r"[*?\[]")
_ONE_MEANING: Final = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timezone": "utc"}
"""Settings that change what a query means, with the only value that has a meaning here."""
_NO_MEANING: Final = ("spark.sql.shuffle.partitions", "spark.sql.adaptive.", "spark.sql.files.", "spark.sql.warehouse.")
"""Settings of SQL that change no result. Those that do not begin with `spark.sql.` change none either."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a specification says.

    `storage` is where Delta tables go, without a `/` at its end; None for rows in Postgres. `prefixes` are what may
    stand before a name, as (database) or (catalog, database). `options` are those of tables in the lake. `ignored` are
    settings without a meaning here. `patterns` are files, and folders that end with `/**`.
    """

    name: str
    storage: str | None
    prefixes: frozenset[tuple[str, ...]]
    options: Mapping[str, str]
    patterns: tuple[str, ...]
    ignored: tuple[str, ...] = field(default=())


def unpacked(found: object) -> Spec:
    """Return the specification that a YAML document holds. Raises Invalid."""
    if not isinstance(found, dict):
        raise Invalid("a specification is a map with the fields name, storage and libraries")
    given: Mapping[object, Any] = found
    for name in given:
        if name not in FIELDS:
            raise Invalid(f"unexpected field {name}: the fields are {', '.join(sorted(FIELDS))}")
    if "name" not in given:
        raise Invalid("the field name is missing")
    catalog, database = _text(given, "catalog"), _text(given, "database") or _text(given, "schema")
    options, ignored = _configured(given.get("configuration") or {})
    storage = _text(given, "storage")
    if storage is None and options:
        raise Invalid(f"{_OWN}{min(options)} is an option of Delta tables, and the field storage is missing")
    return Spec(
        name=_text(given, "name") or "",
        storage=None if storage is None else _place(storage),
        prefixes=_prefixes(catalog, database or "public") | _prefixes(catalog, "public"),
        options=options,
        patterns=tuple(pattern_of(one) for one in _listed(given.get("libraries") or [])),
        ignored=ignored,
    )


def _prefixes(catalog: str | None, database: str) -> frozenset[tuple[str, ...]]:
    alone = (database.lower(),)
    return frozenset({alone} if catalog is None else {alone, (catalog.lower(), *alone)})


def _text(given: Mapping[object, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise Invalid(f"{name} is a text, not {value!r}")
    return value


def _place(storage: str) -> str:
    """Return an absolute path or an `s3://` address. Raises Invalid."""
    path = re.sub(r"^file:(//)?(?=/)", "", storage)
    if not path.startswith(("/", "s3://", "s3a://")) or not path.strip("/"):
        raise Invalid(f"storage is an absolute path, file:///path or s3://bucket/path, not {storage}")
    return path.rstrip("/")


def _listed(libraries: object) -> list[str]:
    if not isinstance(libraries, list):
        raise Invalid("libraries is a list of `glob: include: ..`")
    found: list[str] = []
    for entry in libraries:
        match entry:
            case {"glob": {"include": str(pattern)}}:
                found.append(pattern)
            case _:
                raise Invalid("each of libraries is `glob: include: ..`, a file or a folder that ends with /**")
    return found


def pattern_of(pattern: str) -> str:
    """Return a pattern that Spark permits. Raises Invalid for others."""
    if pattern.startswith("/") or not pattern or _MAGIC.search(pattern.removesuffix("/**")):
        raise Invalid(f"{pattern} is no pattern of a library: it is a file, or a folder that ends with /**, from here")
    return pattern


def _configured(configuration: object) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the options of tables, and the settings that have no meaning here. Raises Invalid."""
    if not isinstance(configuration, dict):
        raise Invalid("configuration is a map of texts")
    options: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in configuration.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise Invalid(f"configuration is a map of texts: quote {name}: {value}")
        if name.startswith(_OWN):
            options[_option(name)] = value
        elif _checked(name.lower(), value):
            ignored.append(name)
    return options, tuple(ignored)


def _option(name: str) -> str:
    option = name.removeprefix(_OWN)
    if option not in _OPTIONS:
        raise Invalid(f"there is no {name}: there are {', '.join(_OWN + one for one in sorted(_OPTIONS))}")
    return option


def _checked(name: str, value: str) -> bool:
    """Whether a setting of Spark is without a meaning here. Raises Invalid if it would change results."""
    if name in _ONE_MEANING:
        if value.lower() != _ONE_MEANING[name]:
            raise Invalid(f"{name} is {_ONE_MEANING[name]} here, not {value}")
        return False
    if name.startswith("spark.sql.") and not name.startswith(_NO_MEANING):
        raise Invalid(f"{name} may change what a query means, and has no meaning here: remove it")
    return True
