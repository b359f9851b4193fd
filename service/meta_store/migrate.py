"""Upgrade the meta store's schema to the newest version: `tidefill migrate`, and the first step of `tidefill serve`."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import make_url

import migrations
from service.meta_store.engine import check_url, psycopg_url, translated
from service.sessions import check_sessions


def migrate(url: str) -> None:
    """Upgrade to the newest version. A schema that has it stays unchanged, and concurrent upgrades wait for each other.

    Raises Unavailable, and Invalid where `url` is not the URL of a Postgres database, or leads to a pooler.
    """
    check_url(url)
    check_sessions(make_url(psycopg_url(url)).set(drivername="postgresql").render_as_string(hide_password=False))
    with translated():
        command.upgrade(configuration(url), "head")


def configuration(url: str) -> Config:
    """Return Alembic's configuration. Both a checkout and a wheel have the scripts in the package `migrations`."""
    config = Config()
    assert migrations.__file__ is not None
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["url"] = url
    return config
