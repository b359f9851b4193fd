"""Bulk load rows in four formats: match columns by name, stage the rows as CSV, validate all of them, apply them.

A body is first received into a file. Only a few loads may stage their rows at a time, so a slow sender must not occupy
such a turn (I13). Another process reads all formats except CSV. Memory is bounded by a slice of rows, whatever the size
of the body (I8).
"""

import asyncio
import fcntl
import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from service.domain.errors import Conflict, Invalid, NotFound, TimedOut, Unavailable
from service.domain.uploading import PARTIAL, Kept, Patience, Spool
from service.operations.rows import csv_text, dml, unpacking
from service.operations.world import World
from service.ports.audit import Asker
from service.ports.columnar import ColumnarBodies, FileForm
from service.ports.records import Claim
from service.protocol.columns import Column, TypeName
from service.protocol.relation import COLUMNS_MAX, Relation, RelationKind
from service.turns import Turns

_READ_BYTES: Final = 1 << 18
_BODY: Final = "tidefill-load-"
"""How the name of a body's file begins."""
_ROW: Final = re.compile(r"row ([1-9][0-9]*)")
ROW_BYTES: Final = 36
"""Bytes of a row in the staging table beside its values: header, line pointer and number."""
_WIDTHS: Final[Mapping[TypeName, int]] = MappingProxyType(
    {
        **dict.fromkeys((TypeName.INTEGER, TypeName.REAL, TypeName.DATE), 4),
        **dict.fromkeys((TypeName.BIGINT, TypeName.DOUBLE, TypeName.TIME, TypeName.TIMESTAMP, TypeName.TIMESTAMPTZ), 8),
        **dict.fromkeys((TypeName.INTERVAL, TypeName.UUID), 16),
    }
)
"""The bytes of a value, whatever its text. It has at least two characters in CSV, with what separates it."""
_PAGE_BYTES: Final = 8192
_NAMED_MAX: Final = 20
"""The maximum number of columns that an error names."""


class Form(StrEnum):
    """The media types of a bulk load."""

    ARROW = "application/vnd.apache.arrow.stream"
    PARQUET = "application/vnd.apache.parquet"
    CSV = "text/csv"
    NDJSON = "application/x-ndjson"


_FILES: Final[Mapping[Form, FileForm]] = MappingProxyType(
    {Form.ARROW: "arrow", Form.PARQUET: "parquet", Form.NDJSON: "ndjson"}
)


@dataclass(frozen=True, slots=True)
class Body:
    """Rows in a file, with the SHA-256 of the file."""

    form: Form
    path: Path
    digest: bytes
    size: int

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes in order."""
        with self.path.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, _READ_BYTES):
                yield chunk


async def paced(world: World, stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the chunks of a body, within limits of time, because the load occupies a place and a file meanwhile.

    Raises TimedOut when no chunk comes for `World.load_idle`, when the body is slower than `World.load_rate_min`, or
    when it takes longer than `World.load_within`.
    """
    iterator = aiter(stream)
    ends = world.clock.monotonic() + world.loading.within.total_seconds()
    patience = Patience(world.loading.idle.total_seconds(), world.loading.rate_min)
    while True:
        asked = world.clock.monotonic()
        try:
            chunk = await asyncio.wait_for(anext(iterator), min(patience.seconds, ends - asked))
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise _too_slow(world) from error
        patience.came(len(chunk), after=world.clock.monotonic() - asked)
        if patience.seconds <= 0:
            raise _too_slow(world)
        yield chunk


def _too_slow(world: World) -> TimedOut:
    return TimedOut(
        f"the body brought nothing for {world.loading.idle.total_seconds():.0f} s (TIDEFILL_LOAD_IDLE_SECONDS), came"
        f" more slowly than {world.loading.rate_min} bytes a second (TIDEFILL_LOAD_RATE_MIN), or took longer than"
        f" {world.loading.within.total_seconds():.0f} s (TIDEFILL_LOAD_SECONDS_MAX)"
    )


@asynccontextmanager
async def received(
    spool: Spool, stream: AsyncIterator[bytes], form: Form, *, pieces: Turns, caller: str
) -> AsyncGenerator[Body]:
    """Yield the whole body in a file, which is deleted after the block. Each chunk takes one of the turns `pieces`.

    Raises what `Spool.check` raises, and Unavailable.
    """
    with Kept(spool, caller) as held, tempfile.NamedTemporaryFile(prefix=_BODY) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        digest = hashlib.sha256()
        try:
            async for chunk in stream:
                held.take(len(chunk))
                async with pieces.turn(caller):
                    await asyncio.to_thread(_keep, chunk, file.write, digest.update)
            await asyncio.to_thread(file.flush)
        except OSError as error:
            raise Unavailable(f"the rows cannot be received: {error.strerror}") from error
        yield Body(form, Path(file.name), digest.digest(), held.size)


def remove_abandoned() -> None:
    """Remove the files of bodies whose services were killed. The kernel has released their locks.

    A service locks its file before the first byte, so an empty one may be new.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{_BODY}*"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_size:
                path.unlink()


def _keep(chunk: bytes, *each: Callable[[bytes], object]) -> None:
    for take in each:
        take(chunk)


async def load(
    world: World,
    name: str,
    names: Sequence[str] | None,
    body: Body,
    *,
    asked_by: Asker,
    claim: Claim | None = None,
) -> int:
    """Load rows and return their number. All rows are validated before the first is applied.

    `names` are the columns of the rows, None for all. Raises NotFound, Conflict if `name` does not take rows, and
    Invalid with row and column.
    """
    relation = await table_called(world, name)
    with Kept(world.loading.spool, asked_by.actor) as kept:
        async with (
            opened(world.loading.columnar, body, chosen(relation, names)) as (columns, chunks),
            aclosing(chunks) as closing,
            aclosing(_counted(closing, body.size, kept.take, row=_row_bytes(columns))) as counted,
        ):
            try:
                return await dml.bulk_load(world, relation, columns, counted, asked_by=asked_by, claim=claim)
            except Invalid as error:
                raise await _with_line(world, error, body) from error


async def _counted(
    chunks: AsyncIterator[bytes], free: int, take: Callable[[int], None], *, row: int
) -> AsyncGenerator[bytes]:
    """Yield rows of CSV, and take the bytes by which they are larger in the staging table than the `free` ones of the
    body: 450 MB of line breaks were 5.5 GB there, and a few kilobytes of Parquet are as many rows as one likes.
    """
    left = free
    async for chunk in chunks:
        left -= len(chunk) + row * chunk.count(b"\n")
        if left < 0:
            take(-left)
            left = 0
        yield chunk


def _row_bytes(columns: Sequence[Column]) -> int:
    """Return how many bytes a row takes besides its text. Postgres divides no row of values without a text."""
    widths = [_WIDTHS.get(one.type.name, 0) for one in columns]
    size = ROW_BYTES + sum(max(width - 2, 0) for width in widths)
    return size if ROW_BYTES + sum(widths) <= _PAGE_BYTES // 2 else max(size, _PAGE_BYTES)


async def _with_line(world: World, error: Invalid, body: Body) -> Invalid:
    """Return a refusal of a row with the line on which the row begins in a CSV body, where an editor shows it."""
    found = _ROW.match(error.message)
    if found is None or body.form is not Form.CSV:
        return error
    async with world.calls.lines.turn():
        line = await asyncio.to_thread(csv_text.line_of, body.path, int(found[1]))
    where = found[0] if line is None else f"{found[0]} (line {line})"
    return Invalid(f"{where}{error.message[found.end() :]}", pointer=error.pointer)


@asynccontextmanager
async def opened(
    columnar: ColumnarBodies, body: Body, wanted: Sequence[Column]
) -> AsyncGenerator[tuple[Sequence[Column], AsyncGenerator[bytes]]]:
    """Yield the columns in the order of the rows' fields, and the rows as CSV. Raises Invalid."""
    match body.form:
        case Form.CSV:
            names, rest = await csv_text.opened(unpacking.text(body.chunks()))
            yield matched(wanted, names), _closable(rest)
        case Form.NDJSON | Form.ARROW | Form.PARQUET:
            async with columnar.opened(body.path, _FILES[body.form]) as rows:
                columns = wanted if body.form is Form.NDJSON else matched(wanted, rows.names)
                yield columns, rows.csv_of(columns)


def chosen(relation: Relation, names: Sequence[str] | None) -> tuple[Column, ...]:
    """Return the columns of a load. Raises Invalid with the names of unknown, duplicate or missing columns."""
    if names is None:
        return relation.visible
    _refuse("given twice", (name for name, count in Counter(names).items() if count > 1))
    visible = {column.name: column for column in relation.visible}
    _refuse("unknown", (name for name in names if name not in visible))
    _refuse("missing", (column.name for column in relation.visible if column.required and column.name not in names))
    return tuple(visible[name] for name in names)


def matched(wanted: Sequence[Column], given: Sequence[str]) -> tuple[Column, ...]:
    """Return the wanted columns in the given order. Raises Invalid with the names of columns that do not match."""
    if len(given) > COLUMNS_MAX:
        raise Invalid(f"the rows have {len(given)} columns; a table has at most {COLUMNS_MAX}", pointer="columns")
    by_name = {column.name: column for column in wanted}
    _refuse("given twice", (name for name, count in Counter(given).items() if count > 1))
    _refuse("unknown", (name for name in given if name not in by_name))
    _refuse("missing", (name for name in by_name if name not in given), PARTIAL)
    return tuple(by_name[name] for name in given)


def _refuse(why: str, names: Iterable[str], instead: str = "") -> None:
    every = list(names)
    if every:
        listed = ", ".join(f'"{name}"' for name in every[:_NAMED_MAX])
        more = len(every) - _NAMED_MAX
        named = f"{listed} and {more} more" if more > 0 else listed
        raise Invalid(f"columns {why}: {named}{instead}", pointer="columns")


async def table_called(world: World, name: str) -> Relation:
    """Return a table that takes rows. Raises NotFound, and Conflict if the relation takes none."""
    async with world.stores.begin() as tx:
        entry = await tx.catalog.named(name)
    if entry is None:
        raise NotFound(f'relation "{name}" does not exist', kind="relation")
    if entry.relation.kind is not RelationKind.TABLE:
        raise Conflict(f'"{name}" is a {entry.relation.kind}: only tables take rows')
    if entry.follows:
        raise Conflict(f'table "{name}" follows a table of a source, and takes no other rows')
    if entry.relation.lake is not None:
        raise Conflict(f'table "{name}" lies in a lake, is read in place, and takes no rows')
    if not entry.shown:
        raise Conflict(f'table "{name}" is {entry.state} and takes no rows')
    if not world.state_store.table_format.dml:
        raise Conflict(f'table "{name}" takes no rows: {dml.NO_DML}')
    return entry.relation


async def _closable(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    async for chunk in chunks:
        yield chunk
