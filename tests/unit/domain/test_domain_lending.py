"""Loans of epochs."""

from datetime import UTC, datetime, timedelta

import pytest

from service.domain.lending import LOAN_LIFE, Loan

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def test_a_loan_says_whose_it_is_and_since_when() -> None:
    loan = Loan("t7", NOW, "abc")
    assert Loan.parse(str(loan)) == loan
    assert str(loan).startswith(Loan.of_borrower("t7"))
    assert not str(loan).startswith(Loan.of_borrower("t"))


@pytest.mark.parametrize(
    "text", ["", "loan", "verify 3", "loan.t7.x.abc", "loan.t7.1.2.3", "pin.t7.1.abc", "loan.t7.999999999999.a"]
)
def test_other_holders_of_pins_are_no_loans(text: str) -> None:
    assert Loan.parse(text) is None


def test_i13_a_loan_ends_however_often_it_is_renewed() -> None:
    loan = Loan("t7", NOW, "abc")
    assert not loan.over(NOW + LOAN_LIFE)
    assert loan.over(NOW + LOAN_LIFE + timedelta(seconds=1))
