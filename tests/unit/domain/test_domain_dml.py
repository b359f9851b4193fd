"""Which statements share an epoch, and which have one to themselves (I13)."""

import pytest

from service.domain.dml import SINGLY, TRIES_MAX, CallerTurns, SinglesTurn, failed
from service.protocol.ids import StatementId


@pytest.mark.parametrize(
    ("tries", "culprit", "hung", "fails"),
    [
        (1, 1, False, False),
        (SINGLY, 1, False, False),
        (SINGLY + 1, 1, False, True),
        (SINGLY + 1, None, True, True),
        (SINGLY + 1, None, False, False),
        (TRIES_MAX, None, False, True),
    ],
)
def test_c4_a_statement_fails_once_it_breaks_an_epoch_of_its_own(
    tries: int, culprit: int | None, hung: bool, fails: bool
) -> None:
    named = None if culprit is None else StatementId(culprit)
    one = (StatementId(1), tries)
    assert failed([one], culprit=named, hung=hung) == ([StatementId(1)] if fails else [])
    other = (StatementId(2), 1)
    assert failed([one, other], culprit=named, hung=hung) == ([StatementId(1)] if tries >= TRIES_MAX else [])


def test_epochs_of_one_statement_take_a_fifth_of_the_time_at_most() -> None:
    turn = SinglesTurn()
    turn.ended(0.3, now=100.0)
    assert turn.may_begin(100.0), "it was as brief as most"
    turn.ended(10.0, now=110.0)
    assert not turn.may_begin(149.9)
    assert turn.may_begin(150.0)


def test_i13_callers_whose_epoch_a_view_ended_have_epochs_of_their_own_until_one_is_committed() -> None:
    turns = CallerTurns()
    assert turns.next(["b", "a", "b", "c"]) == {"a", "b", "c"}
    turns.committed()
    assert turns.next(["b", "a"]) == {"a", "b"}
    turns.failed()
    seen: list[str] = []
    for _ in range(4):
        carried = turns.next(["c", "d", "b", "a"])
        seen.append("".join(sorted(carried)))
        # The views of one caller fail one after the other.
        turns.failed() if "b" in carried else turns.committed()
    assert seen == ["b", "a", "acd", "b"]
    assert turns.apart == {"b"}
    assert turns.next([]) == frozenset()
    turns.failed()
    assert turns.next(["b"]) == {"b"}
    turns.committed()
    assert turns.apart == set()
