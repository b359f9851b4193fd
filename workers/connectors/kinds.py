"""Map the name of every connector to its reader or writer. A new connector needs a module and one line here."""

from collections.abc import Mapping
from typing import Final

from workers.connectors.blackhole import Blackhole
from workers.connectors.constant import Constants
from workers.connectors.datagen import Generator
from workers.connectors.port import MakeReader, MakeWriter

SOURCES: Final[Mapping[str, MakeReader]] = {"datagen": Generator.of, "constant": Constants.of}
SINKS: Final[Mapping[str, MakeWriter]] = {"blackhole": Blackhole.of}
