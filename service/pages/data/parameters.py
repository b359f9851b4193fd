"""The system parameters: the value of each, its default, and what it takes."""

from dataclasses import asdict, dataclass
from typing import Final

from service.domain.parameters import RANGES, SYSTEM, SystemParameters
from service.operations import parameters
from service.pages.asking import Ask

_LONG: Final = 60


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter. `takes` are the permitted values in words."""

    name: str
    value: str
    default: str
    changed: bool
    takes: str


@dataclass(frozen=True, slots=True)
class Parameters:
    """All parameters, those that were changed first."""

    rows: tuple[Parameter, ...]


async def read(ask: Ask) -> Parameters:
    """Read the values. What is secret in them is not shown."""
    return Parameters(rows(await parameters.known(ask.world, ask.caller.role)))


def rows(known: SystemParameters) -> tuple[Parameter, ...]:
    """Return the parameters as rows."""
    defaults = asdict(SystemParameters())
    found = [
        Parameter(name, _text(value), _text(defaults[name]), value != defaults[name], _takes(name))
        for name, value in asdict(known).items()
    ]
    return tuple(sorted(found, key=lambda one: not one.changed))


def _text(value: float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _takes(name: str) -> str:
    if SYSTEM[name] is bool:
        return "true or false"
    if name in RANGES:
        least, most = RANGES[name]
        return f"{least:,} to {most:,}"
    return "a text"
