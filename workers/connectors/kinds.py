"""Map the name of every connector to its reader or sink. A new connector needs a module and one line here."""

from collections.abc import Callable, Mapping
from typing import Final

from service.protocol import delta, file_source
from service.protocol.connector import Connector
from service.protocol.ids import Generation
from service.protocol.relation import Relation
from workers.connectors import delta_apart, delta_watch, folder_watch
from workers.connectors.blackhole import Blackhole
from workers.connectors.constant import Constants
from workers.connectors.datagen import Generator
from workers.connectors.port import Carried, Claim, Describe, MakeCarried, MakeReader, MakeSink, Sink

SOURCES: Final[Mapping[str, MakeReader]] = {"datagen": Generator.of, "constant": Constants.of}
SINKS: Final[Mapping[str, MakeSink]] = {"blackhole": Blackhole.of, delta.NAME: delta_apart.ApartSink.of}
CARRIED: Final[Mapping[str, MakeCarried]] = {delta.NAME: delta_apart.ApartCarried.of}
"""Connectors whose tables followed tables may have."""
CLAIMS: Final[Mapping[str, Claim]] = {delta.NAME: delta_apart.claim}
"""Connectors whose targets are made ready before the job begins."""

LAKES: Final[Mapping[str, Describe]] = {delta.NAME: delta_watch.describe, file_source.NAME: folder_watch.describe}
"""Connectors whose tables are read in place."""

SecretOf = Callable[[str], str]
"""Asks the service for the value of a secret."""


def options_of(connector: Connector, secret_of: SecretOf) -> Mapping[str, str]:
    """Return the options with the values of secrets. They are stored nowhere."""
    return {**connector.options, **{option: secret_of(name) for option, name in connector.secrets.items()}}


def sink_of(connector: Connector, secret_of: SecretOf, relation: Relation, generation: Generation) -> Sink:
    """Return a sink, which has the present values of its secrets."""
    return SINKS[connector.name](options_of(connector, secret_of), relation, generation)


def carried_of(connector: Connector, secret_of: SecretOf, relation: Relation, generation: Generation) -> Carried:
    """Return the table of a followed table, which has the present values of its secrets."""
    return CARRIED[connector.name](options_of(connector, secret_of), relation, generation)
