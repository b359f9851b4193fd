"""Queue commands durably until a barrier carries them."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Text,
    and_,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    not_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from service.meta_store.documents import among, printable, stored, text_of
from service.meta_store.engine import OnConnection
from service.meta_store.schema.core import UNFINISHED
from service.meta_store.schema.core import command as command_table
from service.ports.records import Command
from service.protocol.ids import CommandId, Epoch, FragmentId, GraphId
from service.protocol.mutation import MUTATION, Mutation, Stop

KEPT: Final = 10_000
"""How many of the newest commands are kept after they have finished."""


class PostgresCommands(OnConnection):
    """See `service.ports.meta_store.Commands`."""

    async def add(
        self,
        graph: GraphId,
        mutation: Mutation | None,
        *,
        asked_by: str,
        now: datetime,
        part_of: CommandId | None = None,
        hurried: bool = True,
    ) -> CommandId:
        new = insert(command_table).values(
            graph=graph,
            mutation=None if mutation is None else stored(mutation),
            stops=isinstance(mutation, Stop),
            asked_by=asked_by,
            asked_at=now,
            part_of=part_of,
            hurried=hurried,
        )
        return CommandId((await self._connection.execute(new.returning(command_table.c.id))).scalar_one())

    async def get(self, command: CommandId) -> Command | None:
        found = await self._read(command_table.c.id == command)
        return found[0] if found else None

    async def waiting(self, graph: GraphId) -> Sequence[Command]:
        return await self._read(command_table.c.graph == graph, UNFINISHED, command_table.c.epoch.is_(None))

    async def waiting_of(self, asked_by: str) -> int:
        return (await self._connection.execute(_waiting_of(asked_by))).scalar_one()

    async def wholes_of(self, asked_by: str, kinds: Collection[str]) -> int:
        whole = and_(command_table.c.part_of.is_(None), _KIND.in_(kinds))
        return (await self._connection.execute(_waiting_of(asked_by).where(whole))).scalar_one()

    async def unfinished(self, kind: str, *, scans: Collection[FragmentId] | None = None) -> Sequence[Command]:
        if scans is None:
            return await self._read(UNFINISHED, kind == _KIND)
        named = cast([str(one) for one in scans], ARRAY(Text))
        return await self._read(UNFINISHED, kind == _KIND, command_table.c.mutation["fragments"].has_any(named))

    async def finish(self, commands: Collection[CommandId], *, epoch: Epoch, error: str | None = None) -> None:
        if not commands:
            return
        text = None if error is None else printable(error)
        done = update(command_table).where(among(command_table.c.id, commands), UNFINISHED)
        # A command that a barrier carried keeps that barrier's epoch, even when a later checkpoint commits it (I4).
        own = func.coalesce(command_table.c.epoch, epoch)
        await self._connection.execute(done.values(done=True, epoch=own, error=text))
        old = delete(command_table).where(command_table.c.id <= max(commands) - KEPT, command_table.c.done)
        await self._connection.execute(old)

    async def carried(self, graph: GraphId, upto: Epoch) -> Sequence[Command]:
        return await self._read(command_table.c.graph == graph, UNFINISHED, command_table.c.epoch <= upto)

    async def parts(self, wholes: Collection[CommandId]) -> Mapping[CommandId, Sequence[Command]]:
        found: dict[CommandId, list[Command]] = defaultdict(list)
        if wholes:
            parts = _COMMANDS.add_columns(command_table.c.part_of).where(among(command_table.c.part_of, wholes))
            for row in await self._connection.execute(parts):
                found[CommandId(row.part_of)].append(_command(row))
        return found

    async def _read(self, *conditions: ColumnElement[bool]) -> list[Command]:
        return [_command(row) for row in await self._connection.execute(_COMMANDS.where(*conditions))]


_KIND: Final = command_table.c.mutation["type"].astext
_PART: Final = command_table.alias("part")
_PARTS_LEFT: Final = exists().where(_PART.c.part_of == command_table.c.id, not_(_PART.c.done))


def _effective() -> ColumnElement[int]:
    """Return the epoch at which a command took effect in every graph: the last epoch of its parts.

    For a Resume it is the first epoch, because scans may read history from then on.
    """
    first, last = (
        select(of(_PART.c.epoch))
        .where(_PART.c.part_of == command_table.c.id)
        .correlate(command_table)
        .scalar_subquery()
        for of in (func.min, func.max)
    )
    resumes = _KIND == "resume"
    own = command_table.c.epoch
    return case((resumes, func.least(own, first)), else_=func.greatest(own, last))


_COMMANDS: Final[Select[*tuple[Any, ...]]] = select(
    command_table.c.id,
    command_table.c.graph,
    text_of(command_table.c.mutation).label("mutation"),
    command_table.c.asked_by,
    _effective().label("epoch"),
    and_(command_table.c.done, not_(_PARTS_LEFT)).label("done"),
    command_table.c.error,
    command_table.c.hurried,
).order_by(command_table.c.id)


def _waiting_of(asked_by: str) -> Select[int]:
    its = and_(UNFINISHED, command_table.c.epoch.is_(None), command_table.c.asked_by == asked_by)
    return select(func.count()).where(its)


def _command(row: Row[*tuple[Any, ...]]) -> Command:
    return Command(
        id=CommandId(row.id),
        graph=GraphId(row.graph),
        mutation=None if row.mutation is None else MUTATION.validate_json(row.mutation),
        asked_by=row.asked_by,
        epoch=None if row.epoch is None else Epoch(row.epoch),
        done=row.done,
        error=row.error,
        hurried=row.hurried,
    )
