"""Bringing the meta store's schema to the newest version: `tidefill migrate`, and first thing in `tidefill serve`."""

from pathlib import Path

from alembic import command
from alembic.config import Config

import migrations
from service.meta_store.engine import check_url, translated


def migrate(url: str) -> None:
    """Upgrade to the newest version; nothing happens where it is reached. Deployers queue. Raises Unavailable,
    and Invalid where that is no URL of a Postgres.
    """
    check_url(url)
    with translated():
        command.upgrade(configuration(url), "head")


def configuration(url: str) -> Config:
    """Return Alembic's configuration; the scripts lie beside the package `migrations`, in a checkout and in a wheel."""
    config = Config()
    assert migrations.__file__ is not None
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["url"] = url
    return config
