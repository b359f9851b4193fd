"""Every table of the meta store, wherever its shape is described: what Alembic compares."""

from typing import Final

from sqlalchemy import MetaData

from service.meta_store import limit_models, models, source_models

METADATA: Final[MetaData] = models.METADATA
DESCRIBED: Final = (models, limit_models, source_models)
"""Describing a table enters it."""
