"""A client that outlives its service: every call is repeated, under one idempotency key, until it is answered."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from tests.support.service import ProblemError, Service
from tests.support.waiting import until

PATIENCE = 900.0
"""Seconds for one call, whatever is killed meanwhile."""
CLAIMED = "has not been answered yet", "has taken its idempotency key over"
"""A process that died holds the key for a while; so does one that goes on without its client."""


class Abandoned(Exception):
    """The call is not wanted any more: whether it did anything is unknown."""


@dataclass
class PersistentClient:
    """`name` tells its keys from those of others. Raises ProblemError where a call is refused."""

    service: Service
    name: str
    numbers: Iterator[int] = field(default_factory=count)

    def run(self, text: str, *, unless: Callable[[], bool] | None = None, **session: str) -> dict[str, Any]:
        """Run a statement; return the whole answer."""
        return self.call("POST", "/v1/sql", {"sql": text, "session": session}, unless=unless)

    def call(self, method: str, path: str, body: object = None, *, unless: Callable[[], bool] | None = None) -> Any:
        """Make a call that changes something; give it up once `unless` says so. Raises Abandoned then."""
        key = {"Idempotency-Key": f"{self.name}-{next(self.numbers)}"}
        return self._answer(method, path, unless, headers=key, **({} if body is None else {"json": body}))

    def get(self, path: str, **parameters: Any) -> Any:
        return self._answer("GET", path, None, params=parameters)

    def select(self, query: str) -> list[list[Any]]:
        """Run a query; return its rows."""
        return self._answer("POST", "/v1/sql", None, json={"sql": query})["rows"]

    def _answer(self, method: str, path: str, unless: Callable[[], bool] | None, **more: Any) -> Any:
        last: list[Exception] = []

        def look() -> tuple[Any] | None:
            if unless is not None and unless():
                raise Abandoned
            try:
                return (self.service.call(method, path, **more),)
            except (httpx.TransportError, ProblemError) as error:
                if not may_be_repeated(error):
                    raise
                last[:] = [error]
                return None

        return until(look, what=lambda: f"{method} {path} {more} is answered: {last}", seconds=PATIENCE)[0]


def may_be_repeated(error: httpx.TransportError | ProblemError) -> bool:
    """Whether nobody has said what became of a call."""
    if isinstance(error, httpx.TransportError):
        return True
    return error.status == 503 or any(words in error.problem["detail"] for words in CLAIMED)
