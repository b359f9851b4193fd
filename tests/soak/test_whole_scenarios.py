"""The reference's scenarios in their own size: 25, 36 and 39."""

import pytest

from tests.support.scenarios import STRATEGIES, cars_are_read_in_order, emptied_again_and_again, live_rows_arrive
from tests.support.service import Service

pytestmark = [pytest.mark.soak, pytest.mark.e2e]


@pytest.fixture(params=STRATEGIES)
def one(request: pytest.FixtureRequest) -> dict[str, dict[str, str]]:
    """One strategy at a time: nobody shares the machine with it."""
    return {request.param: dict(STRATEGIES[request.param])}


def test_four_million_rows_and_as_many_live_ones(service: Service, one: dict[str, dict[str, str]]) -> None:
    """Scenario 36: 3,999,999, which three portions divide. The comparison sorts all of them."""
    service.session = {"statement_timeout": "600000"}
    live_rows_arrive(service, 3_999_999, one)


def test_a_table_is_emptied_a_thousand_times(service: Service, one: dict[str, dict[str, str]]) -> None:
    """Scenario 39: two thousand statements, each of which waits for a barrier."""
    service.run("ALTER SYSTEM SET barrier_interval_ms = 100")
    emptied_again_and_again(service, 1_000, one)


def test_a_quarter_million_sales_are_read_after_their_dimensions(service: Service) -> None:
    """Scenario 25."""
    cars_are_read_in_order(service, 250_000, 99_998)
