"""Another caller of an attacked service, who must not notice the attack (I13)."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.service import Service
from tests.support.waiting import Repeating

BARRIERS_MAX = 12
"""How many barriers an INSERT of a bystander may take from its call to its answer; without an attack it takes one or
two.
"""
_LOOKED_AT = 50


@dataclass
class Bystander:
    """Writes to a table of its own while somebody attacks, and checks that its own statements go on."""

    service: Service
    table: str = "bystander"
    written: int = 0
    barriers: list[int] = field(default_factory=list[int])
    """For every INSERT: the barriers that were published from its call to its answer."""

    def prepare(self) -> None:
        """Create the table."""
        self.service.run(f"CREATE TABLE {self.table} (id int PRIMARY KEY)")

    def insert(self) -> None:
        """Insert one row, which must be published within `BARRIERS_MAX` barriers."""
        before = self.service.published()
        self.written += 1
        self.service.run(f"INSERT INTO {self.table} VALUES ({self.written})")
        passed = len(self.service.barriers(after=before, limit=_LOOKED_AT))
        assert passed <= BARRIERS_MAX, f"an INSERT took {passed} barriers"
        self.barriers.append(passed)

    @contextmanager
    def unharmed(self) -> Generator[None]:
        """Insert again and again while the body attacks. At the end every INSERT was published in time, the database
        graph was not recovered, and the service leads in the term in which it led before.
        """
        standing = self._standing()
        with Repeating(lambda _: self.insert()):
            yield
        self.insert()
        assert self._standing() == standing, self.service.log_tail()
        assert self.service.value(f"SELECT count(*) FROM {self.table}") == self.written

    def _standing(self) -> tuple[int, int]:
        ((term,),) = self.service.stored("select term from tidefill.leader_lease")
        return int(self.service.graph()["generation"]), int(term)
