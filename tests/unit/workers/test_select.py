"""How large the result of a SELECT over a lake is on its way to the service."""

import pytest

from service.protocol.ids import RequestId
from service.protocol.request import Selected
from workers.rpc.select import size_of


@pytest.mark.parametrize("row", [(None,) * 100, ("",) * 100, ("x" * 1_000, None, "y"), ()])
def test_i13_nulls_and_short_values_count_as_what_they_are_in_json(row: tuple[str | None, ...]) -> None:
    """A hundred thousand rows of NULLs had no size, and were more than the service reads."""
    rows = (row,) * 500
    sent = len(Selected(id=RequestId(1), rows=rows).model_dump_json())
    assert sent - 60 <= sum(map(size_of, rows)) < 2 * sent
