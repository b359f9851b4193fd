"""A live service that is attacked, and a bystander who must not notice (I13)."""

from collections.abc import Iterator

import pytest

from tests.support.bystander import Bystander
from tests.support.service import Service


@pytest.fixture
def service(live_service: Service) -> Iterator[Service]:
    """The shared service, empty and with default parameters before and after, at two barriers a second meanwhile."""
    live_service.reset()
    live_service.session = {}
    live_service.run("ALTER SYSTEM SET barrier_interval_ms = 500")
    yield live_service
    live_service.reset()


@pytest.fixture
def bystander(service: Service) -> Bystander:
    """Another caller with a table of its own: `with bystander.unharmed(): attack()`."""
    caller = Bystander(service)
    caller.prepare()
    return caller
