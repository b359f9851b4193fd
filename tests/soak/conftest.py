"""A service that a soak may kill."""

from collections.abc import Iterator

import pytest

from tests.support.faulty_service import FAULT
from tests.support.service import FAULTY, Service, data_directory, running


@pytest.fixture
def service() -> Iterator[Service]:
    """A service of one's own, with named faults and a place of its own for temporary files."""
    with data_directory() as directory:
        temporary = directory.parent / "t"
        temporary.mkdir()
        environment = {FAULT: str(directory.parent / "fault"), "TMPDIR": str(temporary)}
        with running(Service(directory, environment, command=FAULTY)) as service:
            yield service
