"""A stream of events writes a little at once, because what a slow client has not read stays in memory (I13)."""

from service.api.routes.events import _frames  # pyright: ignore[reportPrivateUsage]
from service.ports.records import Event
from tests.support.meta_store import NOW


def test_large_events_are_written_one_by_one_and_small_ones_together() -> None:
    large = [Event(number, NOW, "large", {"text": "x" * 70_000}) for number in range(3)]
    small = [Event(number, NOW, "small", {"number": number}) for number in range(3, 6)]
    written = list(_frames([*large, *small]))
    assert [one.count("event: ") for one in written] == [1, 1, 1, 3]
    assert "".join(written).count("\n\n") == 6
    assert list(_frames([])) == []
