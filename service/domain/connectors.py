"""List the connectors that a table or a sink may name, with the checks of their options.

A check raises ValueError with the reason for a refusal. That of a source returns the number of splits. The worker's
part of a connector is in `workers.connectors`. Sources that several tables follow (`postgres-cdc`) are in
`service.domain.source`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.errors import Invalid
from service.protocol import datagen, delta, delta_source, file_source
from service.protocol.columns import Column
from service.protocol.connector import Connector

Check = Callable[[Mapping[str, str], Sequence[Column]], int]
CheckSink = Callable[[Mapping[str, str], Sequence[Column], Sequence[str]], object]
"""Takes the options, the columns, and the names of the key's columns."""
CONNECTOR: Final = "connector"
"""The option that names the connector."""


def _datagen(options: Mapping[str, str], columns: Sequence[Column]) -> int:
    return datagen.read(options, columns).splits


def _blackhole(options: Mapping[str, str], _: Sequence[Column], __: Sequence[str]) -> None:
    if unknown := options.keys() - {"type"}:
        raise ValueError(f'unknown option "{min(unknown)}"')


@dataclass(frozen=True, slots=True)
class InPlaceKind:
    """A kind of table that is read in place. The fields are those of a `SinkKind`."""

    check: Callable[[Mapping[str, str]], object]
    secrets: Collection[str] = (delta.ACCESS_KEY, delta.SECRET_KEY)
    hidden: str | None = delta.SECRET_KEY


@dataclass(frozen=True, slots=True)
class SinkKind:
    """A kind of sink. One that `commits` has a target that takes each change once (I14): its job has a graph of its own
    for ever, and a worker makes the target ready first.
    """

    check: CheckSink
    commits: bool = False
    secrets: Collection[str] = ()
    """Options that may be secrets."""
    hidden: str | None = None
    """The option among these that has to be one."""


SOURCES: Final[Mapping[str, Check]] = {datagen.NAME: _datagen}
SINKS: Final[Mapping[str, SinkKind]] = {
    "blackhole": SinkKind(_blackhole),
    delta.NAME: SinkKind(
        delta.read, commits=True, secrets=(delta.ACCESS_KEY, delta.SECRET_KEY), hidden=delta.SECRET_KEY
    ),
}
IN_PLACE: Final[Mapping[str, InPlaceKind]] = {
    delta.NAME: InPlaceKind(delta_source.source_place),
    file_source.NAME: InPlaceKind(file_source.folder_of),
}
"""The connectors whose tables are read in place. Each may be a source, too: a place of many tables."""
TABLES: Final = (*SOURCES, *IN_PLACE)
"""The connectors that CREATE TABLE may name."""
COMMITS: Final = "its target is committed to by itself, once in a commit_interval"
"""Why a sink has a graph of its own."""


def check_connector(named: tuple[str, int | None] | None, known: Collection[str]) -> None:
    """Raise Invalid at its position if a statement names a connector that there is not."""
    if named is not None and named[0] not in known:
        message = f'connector "{named[0]}" is not supported here: it is one of {", ".join(known)}'
        raise Invalid(message, position=named[1])


def checked(options: Mapping[str, str], columns: Sequence[Column]) -> tuple[Connector, int]:
    """Return the connector that fills a table of these columns, and its number of splits. Raises Invalid."""
    connector = _named(options, SOURCES)
    try:
        return connector, SOURCES[connector.name](connector.options, columns)
    except ValueError as error:
        raise _refused(connector, error) from None


def check_secrets(options: Mapping[str, str], secrets: Collection[str]) -> None:
    """Check which options are secrets and which are plain. Raises Invalid, whose pointer is an option.

    A connector asks for the same secrets to read and to write.
    """
    kinds: Mapping[str, SinkKind | InPlaceKind] = {**IN_PLACE, **SINKS}
    kind = kinds[_named(options, kinds).name]
    if kind.hidden is not None and kind.hidden in options:
        message = f"option \"{kind.hidden}\" is not given as a text: CREATE SECRET name AS '..', then"
        raise Invalid(f"{message} {kind.hidden} = secret name", pointer=kind.hidden)
    if wrong := sorted(set(secrets).difference(kind.secrets)):
        raise Invalid(f'option "{wrong[0]}" is no secret', pointer=wrong[0])


def checked_sink(
    options: Mapping[str, str], secrets: Mapping[str, str], columns: Sequence[Column], key: Sequence[str]
) -> Connector:
    """Return the connector of a sink for rows of these columns. `key` names those of their key. Raises Invalid."""
    connector = _named(options, SINKS).model_copy(update={"secrets": dict(secrets)})
    try:
        # The names of secrets stand for their values.
        SINKS[connector.name].check({**connector.options, **secrets}, columns, key)
    except ValueError as error:
        raise _refused(connector, error) from None
    return connector


def checked_in_place(options: Mapping[str, str], secrets: Mapping[str, str]) -> Connector:
    """Return the connector of a table that is read in place, or of a place of such tables. Raises Invalid."""
    connector = _named(options, IN_PLACE).model_copy(update={"secrets": dict(secrets)})
    try:
        IN_PLACE[connector.name].check({**connector.options, **secrets})
    except ValueError as error:
        raise _refused(connector, error) from None
    return connector


def _named(options: Mapping[str, str], known: Collection[str]) -> Connector:
    name = options.get(CONNECTOR)
    if name is None:
        raise Invalid(f'option "{CONNECTOR}" is missing: it is one of {", ".join(known)}')
    check_connector((name, None), known)
    return Connector(name=name, options={option: text for option, text in options.items() if option != CONNECTOR})


def _refused(connector: Connector, error: ValueError) -> Invalid:
    return Invalid(f'connector "{connector.name}": {error}')
