"""The generator finds what once was wrong: each mend is taken out, and a world that is clean with it is not any more.

The language is that of `test_differential`, cut down to the templates that a mend is about, so that few cases will do.
"""

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from sqlglot import exp

from service.protocol.columns import TypeName
from service.sql.expressions import casts, comparing, scalar, typed
from service.sql.expressions.functions import call
from service.sql.expressions.typed import number
from tests.differential import worlds
from tests.differential.examine import KNOWN, examine, shown
from tests.differential.worlds import Language, draw

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.soak]

Undo = Callable[[pytest.MonkeyPatch, SparkSession], None]
CASES: Final = 18
CASE_SENSITIVE: Final = "spark.sql.caseSensitive"
SETTINGS: Final = (CASE_SENSITIVE,)


def _d2(patch: pytest.MonkeyPatch, _: SparkSession) -> None:
    def fits(*_: typed.Typed) -> bool:
        return False

    patch.setattr(comparing, "_too_wide", fits)


def _d6(patch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    patch.setattr(worlds, "ODD_NAMES", ("A", "_VNODE", "OUTCOME"))
    spark.conf.set(CASE_SENSITIVE, "false")


def _d7(patch: pytest.MonkeyPatch, _: SparkSession) -> None:
    floats = {(kind, TypeName.NUMERIC) for kind in (TypeName.REAL, TypeName.DOUBLE)}
    patch.setattr(casts, "_SAME", casts._SAME | floats)  # pyright: ignore[reportPrivateUsage]


def _d9(patch: pytest.MonkeyPatch, _: SparkSession) -> None:
    def position(scope: Any, node: exp.Expr) -> typed.Typed:
        start = node.args.get("start")
        first = scope.bind(start) if start is not None else number("1")
        length = [scope.argument(node, "length")] if node.args.get("length") else []
        return call("substring", [scope.argument(node), first, *length])

    binders: Any = scalar._BINDERS  # pyright: ignore[reportPrivateUsage]
    patch.setitem(binders, exp.Substring, position)


@dataclass(frozen=True)
class Planted:
    """A mend that can be taken out, and the part of the language that it is about: words of its templates."""

    undo: Undo
    words: tuple[str, ...]
    what: tuple[str, ...]
    """How the differences that it makes begin."""
    seed: int = 1
    """Of a world that shows it."""


PLANTED: Final = MappingProxyType(
    {
        "d2": Planted(
            _d2, ("<n> = ", "<n> < <n>", "<n> <> ", "<E> >= <n>", "<E> in", "<n> between"), ("value",), seed=3
        ),
        "d6": Planted(_d6, ("<x> || <x>", "<i> + <s>"), ("fails",)),
        "d7": Planted(_d7, ("<d>::numeric",), ("value", "does not fail"), seed=2),
        "d9": Planted(_d9, ("substring(<x>, '<'i>')", "substring(<x>, 'a')"), ("value", "does not fail")),
    }
)


@pytest.mark.parametrize("name", PLANTED)
def test_the_generator_finds_what_a_mend_mends(
    postgres_url: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    logging.getLogger("SQLQueryContextLogger").disabled = True
    planted = PLANTED[name]
    with monkeypatch.context() as patch, settings_restored(spark):
        planted.undo(patch, spark)
        told = _told(planted, postgres_url, spark)
    assert any(f": {what}" in told for what in planted.what), told or "nothing was found"
    told = _told(planted, postgres_url, spark)
    assert not told, told


@contextmanager
def settings_restored(spark: SparkSession) -> Generator[None]:
    """Take back what is set within."""
    before = {key: spark.conf.get(key) for key in SETTINGS}
    try:
        yield
    finally:
        for key, value in before.items():
            spark.conf.set(key, str(value))


def _told(planted: Planted, url: str, spark: SparkSession) -> str:
    chosen = {
        kind: [one for one in templates if one.startswith(planted.words)] for kind, templates in KNOWN.templates.items()
    }
    world = draw(planted.seed, Language(chosen, KNOWN.tamed), cases=CASES)
    found = examine(world, url, spark)
    return "\n".join(shown(difference, world) for difference in found.differences)
