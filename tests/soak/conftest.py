"""A service that a soak may kill."""

from collections.abc import Iterator

import pytest

from tests.support.faulty_service import FAULT
from tests.support.service import FAULTY, Service, data_directory, running


@pytest.fixture
def service() -> Iterator[Service]:
    """A service of one's own, with named faults."""
    with data_directory() as directory:
        fault = directory.parent / "fault"
        with running(Service(directory, {FAULT: str(fault)}, command=FAULTY)) as service:
            yield service
