"""Every table of the meta store, wherever its shape is described: what Alembic compares."""

from typing import Final

from sqlalchemy import MetaData

from service.meta_store.schema import core, limits, sources

METADATA: Final[MetaData] = core.METADATA
DESCRIBED: Final = (core, limits, sources)
"""Describing a table enters it."""
