"""Lending epochs to readers with a login of their own."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from service.domain.lending import Loan
from service.protocol.ids import Epoch, GraphId
from service.protocol.relation import Relation


class Lending(Protocol):
    """Keeps epochs readable for the logins of users' own tools, and lets these read the versions of rows."""

    async def lend(self, relations: Sequence[Relation], epochs: Mapping[GraphId, Epoch], *, loan: Loan) -> None:
        """Pin an epoch of each graph for `LOAN_SECONDS`.

        Raises Conflict if the borrower has `LOANS_MAX` loans, however many calls come at once, or if the versions of an
        epoch may have been vacuumed.
        """
        ...

    async def renew(self, loan: str) -> bool:
        """Let it last `LOAN_SECONDS` from now on. False if it is over."""
        ...

    async def end(self, loan: str) -> None:
        """End it, if it lasts."""
        ...
