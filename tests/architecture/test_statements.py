"""Every class of statement is parsed by one family and run by one handler."""

import pkgutil
from collections.abc import Callable
from importlib import import_module
from inspect import isclass
from typing import Any, Final, get_args, get_type_hints

import pytest

import service.sql.statements as package
from service.operations.statements import dispatch
from service.operations.statements.call import HANDLERS
from service.sql.parse import FAMILIES, PARSERS
from service.sql.statements.statement import Statement

CLASSES: Final[frozenset[type[Statement]]] = frozenset(
    thing
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    for thing in vars(import_module(module.name)).values()
    if isclass(thing) and issubclass(thing, Statement) and thing is not Statement
)


def returned(parser: Callable[..., Any] | Statement) -> frozenset[type[Statement]]:
    """Return the classes that a parser is declared to return."""
    if isinstance(parser, Statement):
        return frozenset({type(parser)})
    hint = get_type_hints(parser)["return"]
    return CLASSES.intersection(get_args(hint) or (hint,))


def test_every_class_has_a_handler_and_nothing_else_has() -> None:
    assert len(CLASSES) > 30
    assert set(HANDLERS) == CLASSES


@pytest.mark.parametrize("kind", sorted(CLASSES, key=str))
def test_every_class_is_parsed_by_one_family(kind: type[Statement]) -> None:
    parsers = {words: parser for words, parser in PARSERS.items() if kind in returned(parser)}
    homes = {family for family in FAMILIES for parser in family.PARSERS.values() if kind in returned(parser)}
    assert parsers
    assert len(homes) == 1 or set(parsers) == {("explain",)}


def test_no_family_takes_the_words_of_another() -> None:
    assert sum(len(family.PARSERS) for family in FAMILIES) + len({("create",), ("explain",)}) == len(PARSERS)


def test_a_family_has_the_same_name_in_both_rooms() -> None:
    assert [home.__name__.split(".")[-1] for home in FAMILIES] == [
        home.__name__.split(".")[-1] for home in dispatch.FAMILIES
    ]
