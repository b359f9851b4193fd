"""Upgrade the meta store's schema to the newest version: `tidefill migrate`, and the first step of `tidefill serve`."""

from pathlib import Path

from alembic import command
from alembic.config import Config

import migrations
from service.meta_store.engine import check_url, translated


def migrate(url: str) -> None:
    """Upgrade to the newest version. A schema that has it stays unchanged, and concurrent upgrades wait for each other.

    Raises Unavailable, and Invalid where `url` is not the URL of a Postgres database.
    """
    check_url(url)
    with translated():
        command.upgrade(configuration(url), "head")


def configuration(url: str) -> Config:
    """Return Alembic's configuration. Both a checkout and a wheel have the scripts in the package `migrations`."""
    config = Config()
    assert migrations.__file__ is not None
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["url"] = url
    return config
