"""List the connectors that a table or a sink may name, with the checks of their options.

A check returns the number of splits (1 for a sink), and raises ValueError with the reason for a refusal. The worker's
part of a connector is in `workers.connectors`. Sources that several tables follow (`postgres-cdc`) are in
`service.domain.source`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from service.domain.errors import Invalid
from service.protocol import datagen
from service.protocol.columns import Column
from service.protocol.plan import Connector

Check = Callable[[Mapping[str, str], Sequence[Column]], int]
CONNECTOR: Final = "connector"
"""The option that names the connector."""


def _datagen(options: Mapping[str, str], columns: Sequence[Column]) -> int:
    return datagen.read(options, columns).splits


def _blackhole(options: Mapping[str, str], _: Sequence[Column]) -> int:
    if unknown := options.keys() - {"type"}:
        raise ValueError(f'unknown option "{min(unknown)}"')
    return 1


SOURCES: Final[Mapping[str, Check]] = {datagen.NAME: _datagen}
SINKS: Final[Mapping[str, Check]] = {"blackhole": _blackhole}


def check_connector(named: tuple[str, int | None] | None, known: Mapping[str, Check]) -> None:
    """Raise Invalid at its position if a statement names a connector that there is not."""
    if named is not None and named[0] not in known:
        message = f'connector "{named[0]}" is not supported here: it is one of {", ".join(known)}'
        raise Invalid(message, position=named[1])


def checked(options: Mapping[str, str], columns: Sequence[Column], known: Mapping[str, Check]) -> tuple[Connector, int]:
    """Return the connector that the options name, and its number of splits. Raises Invalid."""
    name = options.get(CONNECTOR)
    if name is None:
        raise Invalid(f'option "{CONNECTOR}" is missing: it is one of {", ".join(known)}')
    check_connector((name, None), known)
    own = {option: text for option, text in options.items() if option != CONNECTOR}
    try:
        return Connector(name=name, options=own), known[name](own, columns)
    except ValueError as error:
        raise Invalid(f'connector "{name}": {error}') from None
