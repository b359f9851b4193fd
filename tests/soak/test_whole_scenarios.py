"""The reference's scenarios in their own size: 36 and 39."""

import pytest

from tests.support.scenarios import emptied_again_and_again, live_rows_arrive
from tests.support.service import Service

pytestmark = [pytest.mark.soak, pytest.mark.e2e]


def test_four_million_rows_and_as_many_live_ones(service: Service) -> None:
    """Scenario 36: 3,999,999, which three portions divide. The comparison sorts all of them."""
    service.session = {"statement_timeout": "600000"}
    live_rows_arrive(service, 3_999_999)


def test_a_table_is_emptied_a_thousand_times(service: Service) -> None:
    """Scenario 39: two thousand statements, each of which waits for a barrier."""
    service.run("ALTER SYSTEM SET barrier_interval_ms = 100")
    emptied_again_and_again(service, 1_000)
