"""What a snapshot job reads, epoch by epoch: history at one epoch, then every change since, once and in order."""

from hypothesis import given
from hypothesis import strategies as st

from service.protocol.ids import Epoch
from workers.backfill.reading import SPAN_FIRST, Reading, Replay, interleaved

PINNED = Epoch(1_000 << 16)
STEPS = st.lists(st.integers(0, 40 * SPAN_FIRST), min_size=1, max_size=30)


@given(STEPS)
def test_the_log_is_read_without_a_gap_and_without_a_repetition(steps: list[int]) -> None:
    """I3: spans follow one another from the pinned epoch on, and never pass what is committed."""
    replay, upto, consumed = Replay(PINNED), PINNED, PINNED
    for step in steps:
        upto = Epoch(upto + step)
        reading = replay.reading(upto)
        assert (reading.after, reading.at) == (consumed, PINNED)
        assert reading.after <= reading.upto <= upto
        replay.replayed(reading, upto)
        consumed = reading.upto
        assert replay.consumed == consumed


@given(st.integers(0, 10_000 * SPAN_FIRST))
def test_however_far_behind_it_catches_up_in_a_few_spans(behind: int) -> None:
    """Each span that is cut doubles the next one: their number grows as the logarithm of the lag."""
    replay, upto, epochs = Replay(PINNED), Epoch(PINNED + behind), 0
    while replay.consumed != upto:
        replay.replayed(replay.reading(upto), upto)
        epochs += 1
    assert epochs <= 1 + (behind // SPAN_FIRST).bit_length()


def test_the_snapshot_is_read_at_its_epoch_and_no_change_with_it() -> None:
    replay = Replay(PINNED)
    assert replay.reading(None) == Reading(PINNED, PINNED, PINNED)
    assert not replay.reading(None).changes


def test_a_generation_goes_on_from_what_was_committed() -> None:
    replay = Replay(PINNED, Epoch(PINNED + 7))
    assert replay.reading(Epoch(PINNED + 9)) == Reading(Epoch(PINNED + 7), Epoch(PINNED + 9), PINNED)


def test_an_interleaving_scan_reads_pages_where_its_changes_end() -> None:
    assert interleaved(since=Epoch(5), curr=Epoch(8)) == Reading(Epoch(5), Epoch(8), Epoch(8))
    assert not interleaved(since=Epoch(8), curr=Epoch(8)).changes


def test_what_came_meanwhile_waits_and_is_replayed_oldest_first() -> None:
    """Scenario 55, whose queue of barriers is here the log since the pinned epoch: nothing of it while it has to wait,
    then all of it in its order.
    """
    replay, came = Replay(Epoch(1), span=2), Epoch(6)
    assert not replay.reading(None).changes
    spans: list[tuple[int, int]] = []
    while (reading := replay.reading(came)).changes:
        spans.append((reading.after, reading.upto))
        replay.replayed(reading, came)
        came = Epoch(7)
    assert spans == [(1, 3), (3, 7)]
