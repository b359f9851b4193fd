"""Collect every table of the meta store, for Alembic's comparison with the database."""

from typing import Final

from sqlalchemy import MetaData

from service.meta_store.schema import access, core, indexes, launches, limits, sources

METADATA: Final[MetaData] = core.METADATA
DESCRIBED: Final = (access, core, indexes, launches, limits, sources)
"""Importing these modules registers their tables in the metadata."""
