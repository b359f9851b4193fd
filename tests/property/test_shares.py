"""Whatever callers do, nobody takes all places, and who holds none of them finds one (S4)."""

from hypothesis import given
from hypothesis import strategies as st

from service.domain.shares import Shares

STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60)


@given(st.integers(1, 40), STEPS)
def test_s4_a_caller_never_holds_more_than_were_free(places: int, steps: list[tuple[str, bool]]) -> None:
    shares = Shares(places)
    for caller, takes in steps:
        if takes and shares.room(caller):
            free = places - shares.taken
            shares.take(caller)
            assert 0 < shares.held[caller] <= free
        elif not takes and shares.held[caller]:
            shares.free(caller)
        assert shares.taken == shares.held.total() <= places
        assert all(shares.held.values()), "who holds nothing is forgotten"


@given(st.integers(1, 10))
def test_s4_as_many_callers_find_a_place_as_the_places_can_be_halved(doublings: int) -> None:
    """Each of these takes all that it can, so a further one finds a place as long as one is left after the halving."""
    shares = Shares(1 << doublings)
    for caller in range(doublings):
        while shares.room(str(caller)):
            shares.take(str(caller))
        assert shares.room("another"), caller


@given(st.integers(1, 9), st.lists(st.sampled_from("abc"), min_size=1, max_size=9), STEPS)
def test_s4_the_next_one_is_of_the_callers_with_the_fewest(
    places: int, waiting: list[str], steps: list[tuple[str, bool]]
) -> None:
    shares = Shares(places)
    for caller, takes in steps:
        if takes and shares.room(caller):
            shares.take(caller)
    number = shares.next(waiting)
    able = [caller for caller in waiting if shares.room(caller)]
    assert (number is None) == (not able)
    if number is not None:
        assert shares.room(waiting[number])
        assert shares.held[waiting[number]] == min(shares.held[caller] for caller in able)
        assert waiting.index(waiting[number]) == number, "the calls of one caller keep their order"
