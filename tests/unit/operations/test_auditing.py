"""What DML leaves in the audit trail: not an entry for each, but who changes which table."""

from dataclasses import dataclass, field, replace

import pytest

from service.domain.errors import Unavailable
from service.domain.roles import Role
from service.operations.auditing import first_word
from service.operations.rows import dml
from service.operations.shared_reads import ENTRIES_MAX, Spaced
from service.operations.world import RECORDED_EVERY_SECONDS, World
from service.ports.audit import Asker, AuditedCall
from service.protocol.dml import Delete
from service.protocol.ids import RelationId, Term
from tests.support.fake_meta_store import FakeBegin, FakeStores
from tests.support.http import StillClock, world_of
from tests.support.meta_store import NOW, relation

CALL = AuditedCall(NOW, "POST", "/v1/sql", "t", "DELETE FROM t")
ANNA = Asker("token 7 (anna)", Role.OPERATOR, CALL)


@dataclass
class Recording(FakeStores):
    """Notes whose transactions record something. They fail as often as the test says."""

    failures: int = 0
    actors: list[str] = field(default_factory=list[str])

    def begin(self, term: Term | None = None, *, by: Asker | None = None) -> FakeBegin:
        if by is not None and self.failures:
            self.failures -= 1
            raise Unavailable("away")
        self.actors += [] if by is None else [by.actor]
        return super().begin(term)


async def delete(world: World, asker: Asker = ANNA, *, table: int = 1) -> None:
    """Send a statement at the world's present time; nobody runs it."""
    clock = world.clock
    assert isinstance(clock, StillClock)
    began = clock.seconds
    one = Delete(id=await dml.reserve(world), relation=relation("t").model_copy(update={"id": RelationId(table)}))
    with pytest.raises(Unavailable):
        await dml.run(world, one, asked_by=asker)
    clock.seconds = began


async def test_dml_is_recorded_once_a_minute_for_each_actor_and_table() -> None:
    stores = Recording(lambda: NOW)
    world = world_of(stores)
    bob = replace(ANNA, actor="bob")
    for asker in (ANNA, ANNA, bob, ANNA, bob):
        await delete(world, asker)
    assert stores.actors == [ANNA.actor, "bob"]
    await delete(world, table=2)
    assert stores.actors == [ANNA.actor, "bob", ANNA.actor]
    assert isinstance(world.clock, StillClock)
    world.clock.seconds += RECORDED_EVERY_SECONDS
    await delete(world)
    assert len(stores.actors) == 4


@pytest.mark.parametrize(
    ("statement", "word"),
    [("create/*1*/view v", "CREATE"), (" (\tSELECT 1)", "SELECT"), ("/*1*/create view v", ""), ("", "")],
)
def test_i13_refused_statements_of_a_kind_are_one_however_they_are_written(statement: str, word: str) -> None:
    """A viewer's 180 refusals in some seconds were 180 entries."""
    assert first_word(statement) == word


async def test_a_statement_that_was_not_accepted_counts_for_nothing() -> None:
    stores = Recording(lambda: NOW, failures=1)
    world = world_of(stores)
    await delete(world)
    assert stores.actors == []
    await delete(world)
    assert stores.actors == [ANNA.actor]


def test_only_so_many_keys_are_kept_and_the_oldest_is_forgotten_first() -> None:
    spaced = Spaced(60.0)
    assert all(spaced.due(key, now=0.0) for key in range(ENTRIES_MAX + 1))
    assert len(spaced.kept) == ENTRIES_MAX
    assert not spaced.due(1, now=59.9)
    assert spaced.due(0, now=59.9)
    assert spaced.due(5, now=60.0)
