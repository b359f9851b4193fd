"""A container: a process group of this machine."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.kubelet.images import Program

_TAIL_LINES, _TAIL_BYTES = 80, 2048
"""How much of a log becomes a container's termination message."""


@dataclass
class Container:
    """A started container. Its group is ended with its first process, as a container is."""

    process: asyncio.subprocess.Process
    program: Program
    directory: Path
    log: Path
    logged_before: int
    oom_killed: bool = False

    @classmethod
    async def start(cls, program: Program, directory: Path, log: Path) -> "Container":
        """Start the program, whose output is added to `log`. Raises OSError."""
        with log.open("ab") as output:
            before = output.tell()
            process = await asyncio.create_subprocess_exec(
                *program.command,
                cwd=directory,
                env=program.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            return cls(process, program, directory, log, before)

    async def exit_code(self) -> int:
        """Wait for the end; return the code as Kubernetes has it: 128 more than the number of a signal."""
        code = await self.process.wait()
        self.kill()
        return code if code >= 0 else 128 - code

    async def stop(self, grace_seconds: float, pre_stop: Sequence[str] | None = None) -> int:
        """Run the hook, send SIGTERM, and SIGKILL after the grace, which includes the hook; return the exit code."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                if pre_stop is not None:
                    await self.run(pre_stop)
                with suppress(ProcessLookupError):
                    self.process.send_signal(signal.SIGTERM)
                return await self.exit_code()
        self.kill()
        return await self.exit_code()

    async def run(self, command: Sequence[str]) -> bool:
        """Run a command inside the container; return whether it exited with 0."""
        nothing = asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=self.directory,
                env=self.program.environment,
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                start_new_session=True,
            )
        except OSError:
            return False
        try:
            return await process.wait() == 0
        finally:
            _kill_group(process.pid)
            await process.wait()

    def kill(self) -> None:
        """SIGKILL for the whole group."""
        _kill_group(self.process.pid)

    def tail(self) -> str:
        """Return the last lines that this start has written."""
        with self.log.open("rb") as log:
            log.seek(self.logged_before)
            text = log.read()[-_TAIL_BYTES:].decode(errors="replace")
        return "".join(text.splitlines(keepends=True)[-_TAIL_LINES:])


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
