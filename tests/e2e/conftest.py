"""Real processes: a service that serves many tests, or one for a single test that kills it."""

from collections.abc import Iterator, Mapping

import pytest

from tests.support.faulty_service import FAULT
from tests.support.production import External, external_postgres
from tests.support.service import ARRANGEMENT, FAULTY, Service, data_directory
from tests.support.waiting import until


@pytest.fixture
def service(live_service: Service, request: pytest.FixtureRequest) -> Iterator[Service]:
    """The shared service, empty and with default parameters before and after, at two barriers a second meanwhile."""
    live_service.reset()
    live_service.session = session_of(request)
    live_service.run("ALTER SYSTEM SET barrier_interval_ms = 500")
    yield live_service
    live_service.reset()


@pytest.fixture
def killable(service: Service) -> Iterator[Service]:
    """The shared service: it runs again afterwards, whatever becomes of the test."""
    yield service
    if service.process is not None and service.process.poll() is not None:
        service.restart()


def session_of(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Return the session of a test: tests marked `arrangement` are about jobs created in the database graph."""
    return ARRANGEMENT if request.node.get_closest_marker("arrangement") else {}


@pytest.fixture
def workerless(request: pytest.FixtureRequest) -> Iterator[Service]:
    """A service without a worker of its own: the test brings what it needs, faults included."""
    with data_directory() as directory:
        environment = {"TIDEFILL_LAUNCHER": "none", FAULT: str(directory.parent / "fault")}
        service = Service(directory, environment, session=session_of(request), command=FAULTY)
        try:
            service.start(ready=False)
            until(service.is_alive, what=service.log_tail)
            yield service
        finally:
            service.clear()


@pytest.fixture(scope="session")
def server() -> Iterator[External]:
    """An external Postgres for everybody. Whoever uses it leaves it as it was: see `external`."""
    with data_directory() as directory:
        directory.mkdir(mode=0o711)
        with external_postgres(directory) as external:
            yield external


@pytest.fixture
def external(service: Service, server: External) -> Iterator[External]:
    """The external server, empty, with nothing of the service's in it before and after."""
    server.clear()
    yield server
    service.reset()
    until(lambda: not server.slots(), what="no slot is left (I9)")
    server.clear()
