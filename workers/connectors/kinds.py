"""Map the name of every sink connector to its writer. A new connector is a new module and one line here."""

from collections.abc import Mapping
from typing import Final

from workers.connectors.blackhole import Blackhole
from workers.connectors.port import MakeWriter

SINKS: Final[Mapping[str, MakeWriter]] = {"blackhole": Blackhole.of}
