"""Tables that change all the time, each beside a model of what it holds: what was answered has happened, once, in the
order of the answers (I3).

The statements of a turn run side by side on ids of their own, so that their order does not matter; each is repeated
until it is answered. Those on the ledger are made once, whatever becomes of the answer.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random

import httpx

from tests.support.persistent_client import PersistentClient, may_be_repeated
from tests.support.service import ProblemError, Service

ROWS = 4_000
MOVED = 10_000_000
KEYS = {"orders": ", PRIMARY KEY (id)", "items": ", PRIMARY KEY (note DESC, id)", "visits": ""}
"""A key of one column, one whose order is that of a text from its end, and none."""

Row = tuple[int, str]


@dataclass(frozen=True)
class Change:
    """One statement, the tag that answers it, and what it does to the model: ids that are gone, rows that are there."""

    text: str
    tag: str
    gone: Sequence[int] = ()
    there: dict[int, Row] = field(default_factory=dict[int, Row])


@dataclass
class StormTable:
    """A table of `KEYS` and the rows that it has to hold, by id."""

    name: str
    client: PersistentClient
    random: Random
    pool: ThreadPoolExecutor
    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    top: int = 0
    """Ids from here on were never used."""
    changed: int = 0
    """Rows that statements have changed."""

    def prepare(self) -> None:
        self.client.run(f"CREATE TABLE {self.name} (id bigint, v int, note text{KEYS[self.name]})")
        self._make([self._insert(ROWS)])

    def turn(self, _turn: int) -> None:
        """Change some rows of every kind, side by side."""
        first = self.random.randrange(self.top - 100)
        updated, moved, deleted = (self._held(first + a, first + b) for a, b in ((10, 49), (50, 64), (65, 79)))
        changes = [
            Change(
                f"UPDATE {self.name} SET v = v + 1 WHERE id BETWEEN {first + 10} AND {first + 49}",
                f"UPDATE {len(updated)}",
                there={one: (v + 1, note) for one, (v, note) in updated.items()},
            ),
            Change(
                f"UPDATE {self.name} SET id = id + {MOVED}, note = note || '+'"
                f" WHERE id BETWEEN {first + 50} AND {first + 64}",
                f"UPDATE {len(moved)}",
                gone=list(moved),
                there={one + MOVED: (v, note + "+") for one, (v, note) in moved.items()},
            ),
            Change(
                f"DELETE FROM {self.name} WHERE id BETWEEN {first + 65} AND {first + 79}",
                f"DELETE {len(deleted)}",
                gone=list(deleted),
            ),
            self._overwrite(self._held(first, first + 9)),
            self._insert(30),
        ]
        self._make(changes)

    def check(self, service: Service) -> int:
        """Assert that the table holds what its statements have made of it; return the number of its rows."""
        held = sorted(service.stored(f"select id, v, note from public.{self.name}"))
        assert held == sorted((one, *row) for one, row in self.rows.items()), self.name
        return len(held)

    def _make(self, changes: Sequence[Change]) -> None:
        answers = [answer["tag"] for answer in self.pool.map(self.client.run, [change.text for change in changes])]
        assert answers == [change.tag for change in changes], [change.text for change in changes]
        for change in changes:
            for one in change.gone:
                del self.rows[one]
            self.rows.update(change.there)
            self.changed += int(change.tag.split()[-1])

    def _held(self, first: int, last: int) -> dict[int, Row]:
        return {one: self.rows[one] for one in range(first, last + 1) if one in self.rows}

    def _insert(self, rows: int) -> Change:
        """Insert what a query gives: staged before the epoch that takes it."""
        first, self.top = self.top, self.top + rows
        text = (
            f"INSERT INTO {self.name} SELECT g, g % 1000, 'note ' || g FROM generate_series({first}, {self.top - 1}) g"
        )
        there = {one: (one % 1000, f"note {one}") for one in range(first, self.top)}
        return Change(text, f"INSERT 0 {rows}", there=there)

    def _overwrite(self, held: dict[int, Row]) -> Change:
        """Insert rows again with other values; where there is no key to overwrite, new ones."""
        if not KEYS[self.name] or not held:
            first, self.top = self.top, self.top + 5
            there = {one: (-one, f"new {one}") for one in range(first, self.top)}
        else:
            there = {one: (v - 7, note) for one, (v, note) in held.items()}
            if self.name == "orders":
                there = {one: (v, note[::-1]) for one, (v, note) in there.items()}
        values = ", ".join(f"({one}, {v}, '{note}')" for one, (v, note) in there.items())
        return Change(f"INSERT INTO {self.name} VALUES {values}", f"INSERT 0 {len(there)}", there=there)


@dataclass
class Ledger:
    """Numbers that are inserted once each, whatever becomes of the answer."""

    service: Service
    over: threading.Event
    answered: set[int] = field(default_factory=set[int])
    unknown: set[int] = field(default_factory=set[int])

    def prepare(self) -> None:
        PersistentClient(self.service, "ledger").run("CREATE TABLE ledger (n bigint)")

    def turn(self, turn: int) -> None:
        try:
            self.service.run(f"INSERT INTO ledger VALUES ({turn})")
        except (httpx.TransportError, ProblemError) as error:
            if not may_be_repeated(error):
                raise
            self.unknown.add(turn)
            self.over.wait(0.5)
        else:
            self.answered.add(turn)

    def check(self) -> None:
        """What was answered is there, once; what was not is there at most once."""
        counted = dict(self.service.stored("select n, count(*) from public.ledger group by n"))
        assert set(counted.values()) <= {1}, "a statement ran twice"
        assert self.answered <= counted.keys(), "a statement that was answered is lost"
        assert counted.keys() <= self.answered | self.unknown
