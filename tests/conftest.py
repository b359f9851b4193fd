"""Fixtures every area shares."""

import asyncio
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings
from sqlalchemy import make_url

from service.meta_store.migrate import migrate
from tests.support.control_plane.plane import Plane, fresh_namespace, running_plane
from tests.support.control_plane.program import ABSENT, build_if_asked, find_plane
from tests.support.helm import begin_building
from tests.support.kubelet.images import as_written
from tests.support.kubelet.kubelet import Kubelet, running_kubelet
from tests.support.lock_order import Watch
from tests.support.postgres import embedded_postgres, fresh_database
from tests.support.run_directories import clear_abandoned, places
from tests.support.service import Service, data_directory, running
from tests.support.state_store import lay_out_template

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LOCKS = Watch()


def pytest_configure() -> None:
    """Say that there is no event loop yet: asked for one it was not given, asyncio 3.11 makes one nobody closes. And
    that neither an example nor its making has to be quick: that would say something of the machine.
    """
    asyncio.set_event_loop(None)
    LOCKS.attach()
    settings.register_profile("tidefill", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tidefill")
    # The default prints the locals of every frame, which takes seconds.
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, plain])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let two processes share the tests of a part."""
    parser.addoption("--half", type=int, choices=(1, 2), help="run every other file only, from this one on")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the files of the other half."""
    half = config.getoption("--half")
    if half is None:
        return
    mine = set(sorted({item.path for item in items})[half - 1 :: 2])
    config.hook.pytest_deselected(items=[item for item in items if item.path not in mine])
    items[:] = [item for item in items if item.path in mine]


def pytest_sessionstart() -> None:
    """Clear away what killed runs have left."""
    for place in places():
        clear_abandoned(place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tools that take minutes to build are built beside the tests that come before them. The objects of thousands of
    tests stay to the end, and no collection of garbage looks at them again.
    """
    gc.freeze()
    if any("helm" in item.path.parts for item in session.items):
        begin_building()
    if any(item.get_closest_marker("control_plane") for item in session.items):
        build_if_asked()


@pytest.fixture(autouse=True)
def locks_in_order() -> Iterator[None]:
    """Every transaction that the product begins in a test locks rows in the order of the meta store's `LOCK_ORDER`."""
    LOCKS.wrong.clear()
    yield
    assert not LOCKS.wrong, "\n".join(LOCKS.wrong.values())


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A running embedded Postgres 18; the URL's login is a superuser."""
    with embedded_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def migrated_database(postgres_url: str) -> Iterator[str]:
    """The name of a database with the meta store's schema and nothing in it."""
    with fresh_database(postgres_url) as url:
        migrate(url)
        yield str(make_url(url).database)


@pytest.fixture
def database_url(postgres_url: str, migrated_database: str) -> Iterator[str]:
    """A fresh database with the meta store's schema, dropped afterwards: a copy, for hundreds of tests want one."""
    with fresh_database(postgres_url, like=migrated_database) as url:
        yield url


@pytest.fixture(scope="session")
def prepared_database(postgres_url: str, migrated_database: str) -> Iterator[str]:
    """The name of a database with the layout of a state store as well, for tests that are not about preparing it."""
    with fresh_database(postgres_url, like=migrated_database) as url:
        lay_out_template(url)
        yield str(make_url(url).database)


@pytest.fixture
def laid_out_url(postgres_url: str, prepared_database: str) -> Iterator[str]:
    """A fresh database with the layouts of the meta store and of the state store, dropped afterwards."""
    with fresh_database(postgres_url, like=prepared_database) as url:
        yield url


@pytest.fixture
def empty_url(postgres_url: str) -> Iterator[str]:
    """A fresh, empty database, dropped afterwards."""
    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """The one Spark session of the run; nobody else starts or stops one in this process."""
    from tests.support.spark import local_spark  # noqa: PLC0415 - only tests that need Spark pay for importing it

    with local_spark() as session:
        yield session


@pytest.fixture(scope="session")
def live_service() -> Iterator[Service]:
    """A service with one worker for everybody. Whoever uses it leaves it as it was: see `service`."""
    with data_directory() as directory, running(Service(directory)) as service:
        yield service
        service.stop()


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Plane]:
    """A Kubernetes control plane for everybody, without nodes: `kubelet` brings them."""
    if not (program := find_plane()):
        pytest.skip(ABSENT)
    with running_plane(program) as plane:
        yield plane


@pytest.fixture(scope="session")
def kubelet(control_plane: Plane) -> Iterator[Kubelet]:
    """Two nodes for everybody. Images of the repository `machine` have the programs of this machine."""
    with running_kubelet(control_plane, {"machine": as_written}) as started:
        for name in ("one", "two"):
            started.add_node(name)
        yield started


@pytest.fixture
def namespace(control_plane: Plane) -> Iterator[str]:
    """The name of a namespace of the test's own."""
    with fresh_namespace(control_plane) as name:
        yield name
