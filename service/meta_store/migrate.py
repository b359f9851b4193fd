"""Upgrade the meta store's schema to the newest version: `tidefill migrate`, and the first step of `tidefill serve`."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import create_engine, make_url, select
from sqlalchemy.pool import NullPool

import migrations
from service.domain.errors import Conflict
from service.meta_store.engine import check_url, psycopg_url, translated
from service.meta_store.schema.core import SCHEMA, schema_floor
from service.sessions import check_sessions
from service.telemetry.log import logger

log = logger("meta_store")


def migrate(url: str) -> None:
    """Upgrade to the newest version. A schema that has it stays unchanged, and concurrent upgrades wait for each other.

    So does one that a newer service has upgraded, because migrations only expand within a release. Raises Unavailable,
    Invalid where `url` is not the URL of a Postgres database or leads to a pooler, and Conflict where the schema has
    been contracted since this service.
    """
    check_url(url)
    check_sessions(make_url(psycopg_url(url)).set(drivername="postgresql").render_as_string(hide_password=False))
    with translated():
        if not _is_newer(url):
            command.upgrade(configuration(url), "head")


def _is_newer(url: str) -> bool:
    """Whether the schema has a version that this service does not know. Raises Conflict if it cannot work on that."""
    scripts = ScriptDirectory.from_config(configuration(url))
    engine = create_engine(psycopg_url(url), poolclass=NullPool, hide_parameters=True)
    with engine.connect() as connection:
        found = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA}).get_current_revision()
        if found is None or _knows(scripts, found):
            return False
        floor, known = connection.execute(select(schema_floor.c.floor)).scalar_one(), scripts.get_current_head()
    assert known is not None
    # Versions are numbers of four digits.
    if floor > known:
        raise Conflict(
            f"the schema of the meta store ({found}) needs services that know version {floor}; this one knows {known}"
        )
    log.info("meta_store.newer_schema", schema=found, known=known)
    return True


def _knows(scripts: ScriptDirectory, revision: str) -> bool:
    try:
        scripts.get_revision(revision)
    except CommandError:
        return False
    return True


def configuration(url: str) -> Config:
    """Return Alembic's configuration. Both a checkout and a wheel have the scripts in the package `migrations`."""
    config = Config()
    assert migrations.__file__ is not None
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["url"] = url
    return config
