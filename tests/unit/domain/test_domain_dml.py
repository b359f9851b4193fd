"""Which statements share an epoch, and which have one to themselves (I13)."""

import pytest

from service.domain.dml import SINGLY, SLICE_ROWS, TRIES_MAX, SinglesTurn, failed, sliced, slices
from service.protocol.dml import Delete, InsertStaged, Statement
from service.protocol.ids import RelationId, StatementId
from tests.support.meta_store import relation


def deleting(number: int, table: int = 1) -> Statement:
    return Delete(id=StatementId(number), relation=relation("t").model_copy(update={"id": RelationId(table)}))


def staged(number: int, rows: int, table: int = 1) -> Statement:
    of = relation("t").model_copy(update={"id": RelationId(table)})
    return InsertStaged(id=StatementId(number), relation=of, columns=("id",), first=0, last=rows)


def test_what_stands_behind_a_cut_statement_waits_in_its_table_only() -> None:
    waiting = [
        (deleting(1), 0),
        (staged(2, SLICE_ROWS + 5), 0),
        (deleting(3), 0),
        (deleting(4, 2), 0),
        (staged(5, 1, 2), 0),
        (deleting(6, 2), 0),
    ]
    taken = [(one.id, one.last if isinstance(one, InsertStaged) else None) for one in slices(waiting)]
    assert taken == [(1, None), (2, SLICE_ROWS), (4, None)]
    rest = slices([(waiting[1][0], SLICE_ROWS), *waiting[2:]])
    assert [one.id for one in rest] == [2, 3, 4, 5, 6]
    assert isinstance(rest[0], InsertStaged)
    assert (rest[0].first, rest[0].last) == (SLICE_ROWS, SLICE_ROWS + 5)


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


@pytest.mark.parametrize(("rows", "epochs"), [(SLICE_ROWS, None), (SLICE_ROWS + 1, 2), (3 * SLICE_ROWS, 3)])
def test_h2_rows_that_one_epoch_does_not_publish_are_told_of(rows: int, epochs: int | None) -> None:
    told = sliced(rows)
    assert told == (
        () if epochs is None else (f"the rows were published by {epochs} epochs, {SLICE_ROWS} rows by each",)
    )
