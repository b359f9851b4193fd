"""Implements `service.ports.columnar.ColumnarBodies` with a process for each body. Next: `service.columnar.child`."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from service.columnar.child import COLUMNS, HEAD, MESSAGE_MAX, Kind, framed
from service.columnar.rows_json import JsonRows
from service.domain.errors import Invalid
from service.ports.columnar import ColumnarRows, FileForm
from service.protocol.columns import Column
from service.turns import Turns

SLICE_SECONDS: Final = 60.0
"""Time limit for the next few thousand rows: a hundred times what they take on a busy machine."""
MEMORY_MAX: Final = 512 << 20
"""Memory limit for reading a body, in bytes: several times what a row group of the usual size takes."""


PROCESSES_MAX: Final = 4
"""One caller has two of them at most, and beside two callers another one has one."""
SMALL_BYTES: Final = 256 << 10
"""NDJSON of at most this size is read in a thread of the service: it takes some milliseconds, and waits for no process.
"""
SMALL_FIELD_BYTES: Final = 1 << 20
"""Bytes times columns: an object of two bytes has a field for every column."""
_TURN_SECONDS: Final = 10.0
_WAITING_MAX: Final = 1_000
_NAMES: Final = TypeAdapter(tuple[str, ...])


@dataclass(frozen=True, slots=True)
class ProcessRows:
    """See `service.ports.columnar.ColumnarRows`."""

    process: Process
    names: tuple[str, ...]
    end: Callable[[], Awaitable[None]]
    """Ends the process, and lets another body have its slot."""

    async def csv_of(self, columns: Sequence[Column]) -> AsyncGenerator[bytes]:
        """See the port."""
        assert self.process.stdin is not None
        self.process.stdin.writelines(framed(Kind.COLUMNS, COLUMNS.dump_json(tuple(columns))))
        while True:
            kind, content = await _next(self.process)
            if kind is not Kind.ROWS:
                break
            yield content
        # The rows may still wait for their epochs; other bodies must not wait for that.
        await self.end()


@dataclass(frozen=True, slots=True)
class _SmallRows:
    """See `service.ports.columnar.ColumnarRows`. Rows of many columns may be many fields of few bytes: a process reads
    them.
    """

    path: Path
    size: int
    process: Callable[[], AbstractAsyncContextManager[ProcessRows]]
    names: tuple[str, ...] = ()

    async def csv_of(self, columns: Sequence[Column]) -> AsyncGenerator[bytes]:
        """See the port."""
        if self.size * len(columns) > SMALL_FIELD_BYTES:
            async with self.process() as rows:
                async for portion in rows.csv_of(columns):
                    yield portion
            return
        for portion in await asyncio.to_thread(list, JsonRows(self.path).csv_of(columns)):
            yield portion


class ColumnarProcesses:
    """Reads each body in a process that ends with it, or with the caller. `memory` is in bytes."""

    def __init__(self, *, memory: int = MEMORY_MAX, processes: int = PROCESSES_MAX) -> None:
        self._memory = memory
        self._turns = Turns(
            "Arrow, Parquet and NDJSON bodies", running=processes, waiting=_WAITING_MAX, seconds=_TURN_SECONDS
        )

    @asynccontextmanager
    async def opened(self, path: Path, form: FileForm) -> AsyncGenerator[ColumnarRows]:
        """See the port."""
        size = await asyncio.to_thread(os.path.getsize, path)
        if form == "ndjson" and size <= SMALL_BYTES:
            yield _SmallRows(path, size, partial(self._in_process, path, form))
            return
        async with self._in_process(path, form) as rows:
            yield rows

    @asynccontextmanager
    async def _in_process(self, path: Path, form: FileForm) -> AsyncGenerator[ProcessRows]:
        async with AsyncExitStack() as behind:
            await behind.enter_async_context(self._turns.turn())
            process = await behind.enter_async_context(self._reader(form, path))
            _, names = await _next(process)
            yield ProcessRows(process, _NAMES.validate_json(names), behind.aclose)

    @asynccontextmanager
    async def _reader(self, form: FileForm, path: Path) -> AsyncGenerator[Process]:
        environment = {
            # The service's environment is not passed on, because it may hold secrets.
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PATH": os.defpath,
            # Other memory pools reserve memory that is not used but counts.
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "MALLOC_ARENA_MAX": "2",
        }
        command = (sys.executable, "-m", "service.columnar.child", form, str(path), str(self._memory))
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            # A pipe whose content nobody reads stays open for ever.
            await process.communicate()


async def _next(process: Process) -> tuple[Kind, bytes]:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SLICE_SECONDS):
            head = await process.stdout.readexactly(HEAD + 1)
            size, kind = int.from_bytes(head[:HEAD], "big"), Kind(head[HEAD:])
            if size > MESSAGE_MAX:
                raise Invalid("the body cannot be read as what it is said to be: its reader says too much")
            content = await process.stdout.readexactly(size)
    except TimeoutError:
        raise Invalid(f"the body takes more than {SLICE_SECONDS:.0f} s for a few thousand rows") from None
    except asyncio.IncompleteReadError:
        raise Invalid("the body cannot be read as what it is said to be: its reader ended") from None
    if kind is Kind.REFUSED:
        raise Invalid(content.decode())
    return kind, content
