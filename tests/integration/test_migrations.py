"""The schema's history: it goes up, down and up again, and ends where the models are."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.pool import NullPool
from typer.testing import CliRunner

from service.cli.app import app
from service.cli.client import ExitCode
from service.domain.errors import Conflict, Unavailable
from service.meta_store.engine import psycopg_url
from service.meta_store.migrate import configuration, migrate
from service.meta_store.schema.all_tables import METADATA
from service.meta_store.schema.core import SCHEMA

pytestmark = pytest.mark.postgres


@pytest.fixture
def engine(empty_url: str) -> Iterator[Engine]:
    # A login called as our schema would have it as its default one, and reflection would then not name it.
    options = {"options": "-c search_path=public"}
    engine = create_engine(psycopg_url(empty_url), poolclass=NullPool, connect_args=options)
    yield engine
    engine.dispose()


def differences(engine: Engine) -> list[Any]:
    def ours(name: str | None, kind: str, parents: Any) -> bool:
        return name == SCHEMA if kind == "schema" else name != "alembic_version"

    options = {"include_schemas": True, "include_name": ours, "compare_type": True, "compare_server_default": True}
    with engine.connect() as connection:
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), METADATA))


def names(engine: Engine) -> dict[str, list[str]]:
    seen = inspect(engine)
    return {
        schema: sorted([*seen.get_table_names(schema), *seen.get_view_names(schema)])
        for schema in (SCHEMA, "rw_catalog")
    }


def test_there_is_one_head(empty_url: str) -> None:
    assert len(ScriptDirectory.from_config(configuration(empty_url)).get_heads()) == 1


def test_up_down_and_up_again(empty_url: str, engine: Engine) -> None:
    migrate(empty_url)
    first = names(engine)
    assert len(first[SCHEMA]) > 15
    assert len(first["rw_catalog"]) > 10
    command.downgrade(configuration(empty_url), "base")
    assert names(engine) == {SCHEMA: ["alembic_version"], "rw_catalog": []}
    with engine.connect() as connection:
        left = connection.execute(text("select count(*) from pg_class where relname = 'statement_id'")).scalar()
    assert left == 0
    migrate(empty_url)
    assert names(engine) == first


def test_only_the_newest_migration_makes_the_views(empty_url: str, engine: Engine, tmp_path: Path) -> None:
    migrate(empty_url)
    first = names(engine)
    with engine.begin() as connection:
        connection.execute(text("drop view rw_catalog.rw_events"))
    config = configuration(empty_url)
    newest = ScriptDirectory.from_config(config).as_revision_number("head")
    earlier = config.get_main_option("script_location")
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", f"{earlier}/versions:{tmp_path}")
    command.revision(config, "later", rev_id="9000", version_path=str(tmp_path))
    command.upgrade(config, "head")
    assert names(engine) == first
    command.downgrade(config, "base")
    command.upgrade(config, str(newest))
    assert names(engine) == first | {"rw_catalog": []}
    command.upgrade(config, "head")
    assert names(engine) == first


def test_the_models_are_what_the_migrations_make(empty_url: str, engine: Engine) -> None:
    migrate(empty_url)
    assert differences(engine) == []
    with engine.begin() as connection:
        connection.execute(text("alter table tidefill.graph drop column attempts"))
        connection.execute(text("drop index tidefill.statement_waiting"))
    assert {difference[0] for difference in differences(engine)} == {"add_column", "add_index"}


def test_two_deployers_queue(empty_url: str, engine: Engine) -> None:
    code = "import sys; from service.meta_store.migrate import migrate; migrate(sys.argv[1])"
    deployers = [subprocess.Popen([sys.executable, "-W", "error", "-c", code, empty_url]) for _ in range(2)]
    assert [deployer.wait() for deployer in deployers] == [0, 0]
    assert differences(engine) == []


def test_a_migration_needs_no_right_to_create_schemas_where_they_exist(empty_url: str, engine: Engine) -> None:
    """Repeating `migrate` under a login of few rights is a look, nothing more."""
    migrate(empty_url)
    with engine.begin() as connection:
        connection.execute(text("create role few login password 'few'"))
        connection.execute(text(f"grant usage on schema {SCHEMA} to few"))
        connection.execute(text(f"grant select on {SCHEMA}.alembic_version to few"))
    try:
        migrate(engine.url.set(username="few", password="few").render_as_string(hide_password=False))
    finally:
        with engine.begin() as connection:
            connection.execute(text("drop owned by few"))
            connection.execute(text("drop role few"))


def newer(engine: Engine, floor: str) -> None:
    """Have a later release expand the schema."""
    with engine.begin() as connection:
        connection.execute(text("alter table tidefill.graph add column of_a_later_release text"))
        connection.execute(text("update tidefill.alembic_version set version_num = '9998'"))
        connection.execute(text("update tidefill.schema_floor set floor = :floor"), {"floor": floor})


def test_a_schema_of_a_later_release_is_left_as_it_is(empty_url: str, engine: Engine) -> None:
    migrate(empty_url)
    newer(engine, "0001")
    migrate(empty_url)
    assert [difference[0] for difference in differences(engine)] == ["remove_column"]


def test_a_schema_that_was_contracted_since_is_refused(empty_url: str, engine: Engine) -> None:
    migrate(empty_url)
    newer(engine, "9997")
    with pytest.raises(Conflict, match="needs services that know version 9997"):
        migrate(empty_url)
    ended = CliRunner().invoke(app, ["migrate", "--database-url", empty_url])
    assert ended.exit_code == ExitCode.REFUSED
    assert "needs services that know version 9997" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_server_that_is_away_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        migrate("postgresql://somebody:verysecret@127.0.0.1:1/nowhere")
