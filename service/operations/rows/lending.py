"""Lend an epoch of some relations to a caller, who reads them with its own Postgres login."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.domain.errors import Conflict, Invalid, NotFound
from service.domain.job import Job, JobState
from service.domain.lending import LOAN_LIFE, Loan
from service.operations.naming import as_named
from service.operations.read_logins import suffix_of
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.lending import Lending
from service.ports.records import CatalogEntry
from service.protocol.epoch import instant_of
from service.protocol.ids import DATABASE_GRAPH, Epoch, GraphId
from service.protocol.relation import Relation

RELATIONS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class LentRelation:
    """A relation as of a published epoch of its graph, with the number of its rows at about that epoch."""

    relation: Relation
    epoch: Epoch
    rows: int


async def lend(
    world: World, names: Sequence[str], epoch: Epoch | None, *, asked_by: Asker
) -> tuple[str, list[LentRelation]]:
    """Return a loan and the relations. Relations of the database graph have one epoch: `epoch`, or the newest.

    Raises NotFound, Invalid, Conflict if something cannot be read or the caller has too many loans, and Unavailable.
    """
    lending, loan = _lending(world), Loan(suffix_of(asked_by), world.clock.now(), secrets.token_hex(8))
    # Loans of a caller wait for each other, and may not wait with the connections of others (I13). Relations of many
    # columns take long to read and to open, and meanwhile an epoch that was chosen before could pass.
    async with world.logins.turns.turn(asked_by.actor):
        found, epochs = await _lendable(world, names, epoch)
        await lending.lend([entry.relation for entry, _ in found], epochs, loan=loan)
    return str(loan), [LentRelation(entry.relation, epochs[graph], entry.key_count) for entry, graph in found]


async def _lendable(
    world: World, names: Sequence[str], epoch: Epoch | None
) -> tuple[Sequence[tuple[CatalogEntry, GraphId]], Mapping[GraphId, Epoch]]:
    """Return the relations with their graphs, and the epoch of each graph that is to be read."""
    async with world.stores.begin() as tx:
        found = {entry.relation.name: entry for entry in await tx.catalog.called(names)}
        entries = [_readable(found, name) for name in dict.fromkeys(names)]
        jobs = {job.id: job for job in await tx.jobs.where(ids=[entry.job for entry in entries])}
        graphs = [_graph(jobs[entry.job]) for entry in entries]
        epochs = {graph: (await tx.graphs.state(graph)).published for graph in dict.fromkeys(graphs)}
    if epoch is not None:
        newest = min(epochs.values())
        if epoch > newest:
            raise Invalid(f"epoch {epoch} is not published: the newest is {newest}")
        if epoch < newest and world.clock.now() - instant_of(epoch) > LOAN_LIFE:
            # Otherwise a caller could keep all later versions for ever, loan by loan.
            raise Conflict(f"epoch {epoch} can no longer be read: it is older than {LOAN_LIFE}")
        epochs = dict.fromkeys(epochs, epoch)
    return list(zip(entries, graphs, strict=True)), epochs


async def renew(world: World, text: str, *, asked_by: Asker) -> None:
    """Let a loan of the caller last. Raises NotFound if it has ended, and Conflict if it has lasted for too long."""
    loan = _own(text, asked_by)
    if loan.over(world.clock.now()):
        raise Conflict(f"an epoch is lent for {LOAN_LIFE} at most")
    if not await _lending(world).renew(str(loan)):
        raise _ended(text)


async def end(world: World, text: str, *, asked_by: Asker) -> None:
    """End a loan of the caller. Raises NotFound if it is none."""
    await _lending(world).end(str(_own(text, asked_by)))


def _lending(world: World) -> Lending:
    if world.logins.lending is None:
        raise NotFound("this service makes no logins for reading", kind="login")
    return world.logins.lending


def _own(text: str, asked_by: Asker) -> Loan:
    loan = Loan.parse(text)
    if loan is None or loan.borrower != suffix_of(asked_by):
        raise _ended(text)
    return loan


def _ended(text: str) -> NotFound:
    return NotFound(f'there is no loan "{text}": it has ended, or is not the caller\'s', kind="loan")


def _readable(found: dict[str, CatalogEntry], name: str) -> CatalogEntry:
    if name not in found:
        raise NotFound(f'relation "{name}" does not exist', kind="relation")
    one = as_named(found[name])
    if not (one.readable and one.kind.stored):
        raise one.unreadable
    if found[name].relation.lake is not None:
        raise Conflict(f'table "{name}" lies in a lake: read it there')
    return found[name]


def _graph(job: Job) -> GraphId:
    """Return the graph whose published epochs the relation of a job has."""
    return job.graph if job.own_graph is not None and job.state is JobState.CREATED else DATABASE_GRAPH
