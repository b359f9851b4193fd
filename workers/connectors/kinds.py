"""Map the name of every connector to its reader or sink. A new connector needs a module and one line here."""

from collections.abc import Mapping
from typing import Final

from service.protocol import delta
from workers.connectors import deltalake
from workers.connectors.blackhole import Blackhole
from workers.connectors.constant import Constants
from workers.connectors.datagen import Generator
from workers.connectors.port import Claim, MakeReader, MakeSink

SOURCES: Final[Mapping[str, MakeReader]] = {"datagen": Generator.of, "constant": Constants.of}
SINKS: Final[Mapping[str, MakeSink]] = {"blackhole": Blackhole.of, delta.NAME: deltalake.DeltaSink.of}
CLAIMS: Final[Mapping[str, Claim]] = {delta.NAME: deltalake.claim}
"""Connectors whose targets are made ready before the job begins."""
