"""The loans of epochs: who has one, since when, and how long it may last. Pure.

A loan keeps old versions of rows, so it ends when nobody renews it, and after `LOAN_LIFE` whoever renews it (I13).
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

LOAN_SECONDS: Final = 60
"""How long a loan lasts that is not renewed."""
LOAN_LIFE: Final = timedelta(minutes=30)
"""As long as a transaction of a login may be open."""
_DIGITS_MAX: Final = 11
"""Of seconds since 1970: with one more, they are in no year of Python's."""
LOANS_MAX: Final = 8
"""The most loans of one borrower."""


@dataclass(frozen=True, slots=True)
class Loan:
    """A loan, whose text is also the holder of its pins. `borrower` has no dots."""

    borrower: str
    began: datetime
    number: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the loan of a text, or None if it is none."""
        kind, *parts = text.split(".")
        if kind != "loan" or len(parts) != 3 or not parts[1].isdecimal() or len(parts[1]) > _DIGITS_MAX:
            return None
        return cls(parts[0], datetime.fromtimestamp(int(parts[1]), UTC), parts[2])

    def __str__(self) -> str:
        return f"{self.of_borrower(self.borrower)}{int(self.began.timestamp())}.{self.number}"

    @staticmethod
    def of_borrower(borrower: str) -> str:
        """Return how the loans of a borrower begin."""
        return f"loan.{borrower}."

    def over(self, now: datetime) -> bool:
        """Whether it may not be renewed any more."""
        return now - self.began > LOAN_LIFE
