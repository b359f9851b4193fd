"""The life of a pod on a node: from its directory to its last report."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import httpx

from tests.support.control_plane.api import Document
from tests.support.kubelet.calls import Calls
from tests.support.kubelet.containers import Container
from tests.support.kubelet.images import Launch, Program
from tests.support.kubelet.probes import Probes, pause
from tests.support.kubelet.references import AbsentError, environment, expanded, moved
from tests.support.kubelet.statuses import ContainerStatus, PodStatus, running, terminated, waiting
from tests.support.kubelet.volumes import mounts_of, write_volumes

_RETRY_SECONDS: Final = 1.0
_BACK_OFF_SECONDS: Final = 10.0
_BACK_OFF_MAX: Final = 300.0


def now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - a kubelet is no part of the product: it has the machine's clock


class Host(Protocol):
    """The node of a pod."""

    calls: Calls
    second: float
    reachable: asyncio.Event

    def program(self, launch: Launch) -> Program | None:
        """Return what a container runs; None where its image is not there."""
        ...

    def variables(self) -> dict[str, str]:
        """Return the variables of every container."""
        ...


@dataclass
class PodLife:
    """A pod that is bound to a node. `run` returns once the pod is gone from the API."""

    host: Host
    pod: Document
    directory: Path
    ip: str
    grace: asyncio.Future[float] = field(default_factory=asyncio.Future[float])
    """How long the pod may take to end, in seconds, once it is to be deleted."""
    removed: asyncio.Event = field(default_factory=asyncio.Event)
    container: Container | None = None
    _reporting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        spec = self.pod["spec"]
        inits = [ContainerStatus(one["name"], one["image"]) for one in spec.get("initContainers", [])]
        (self.spec,) = spec["containers"]  # pods of several containers are not run
        self.status = PodStatus(self.ip, now(), inits, ContainerStatus(self.spec["name"], self.spec["image"]))
        self.current = self.status.main

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def delete(self, grace_seconds: float) -> None:
        """Take notice that the pod is to be deleted."""
        if not self.grace.done():
            self.grace.set_result(grace_seconds)

    async def run(self) -> None:
        """Run the pod until it has ended and has been deleted. Nothing of it runs afterwards."""
        self._living = asyncio.create_task(self._live())
        removal = asyncio.create_task(self.removed.wait())
        try:
            await asyncio.wait({self._living, self.grace, removal}, return_when=asyncio.FIRST_COMPLETED)
            if self._living.done() and not self._living.cancelled():
                self._living.result()
            await asyncio.wait({self.grace, removal}, return_when=asyncio.FIRST_COMPLETED)
            await self._stop_living()
            if self.grace.done() and not removal.done():
                ending = asyncio.create_task(self._end(self.grace.result()))
                try:
                    await asyncio.wait({ending, removal}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await _cancel(ending)
        finally:
            try:
                await _cancel(removal)
                await self._stop_living()
            finally:
                await self._kill()

    async def evict(self, message: str) -> None:
        """End the pod as a kubelet does that is short of a resource: the pod fails, and stays."""
        await self._stop_living()
        await self._kill()
        status = self.status
        status.phase, status.reason, status.message, status.disrupted = "Failed", "Evicted", message, message
        self._record(status.main, 137, "Error")
        await self.report()

    def kill_for_memory(self) -> None:
        """Kill the container as the kernel does at the memory limit."""
        assert self.container is not None
        self.container.oom_killed = True
        self.container.kill()

    async def report(self) -> None:
        """Report the status as it is now, once the API server can be reached."""
        async with self._reporting:
            while True:
                await self.host.reachable.wait()
                with suppress(httpx.TransportError):
                    return await self.host.calls.report(self.pod, self.status.document(now()))
                await pause(_RETRY_SECONDS)

    async def _live(self) -> None:
        """Prepare the pod and run its containers until it has ended."""
        self.status.main.state = waiting("ContainerCreating")
        await self.report()
        (self.directory / "work").mkdir(parents=True)
        await self._prepare()
        for spec, status in zip(self.pod["spec"].get("initContainers", []), self.status.inits, strict=True):
            if not await self._run_until_ended(spec, status, always="OnFailure"):
                return
        await self._run_until_ended(self.spec, self.status.main, always="Always")

    async def _prepare(self) -> None:
        while True:
            with suppress(AbsentError):
                return await write_volumes(self.host.calls, self.pod, self.directory / "volumes")
            await pause(_RETRY_SECONDS)

    async def _run_until_ended(self, spec: Document, status: ContainerStatus, *, always: str) -> bool:
        """Run a container, again and again if its pod restarts it; return whether it has succeeded.

        `always` is what the policy `Always` means for it: an init container that has succeeded is not run again.
        """
        policy = self.pod["spec"].get("restartPolicy", "Always")
        policy = always if policy == "Always" else policy
        while True:
            code = await self._run_once(spec, status, await self._program(spec, status))
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                break
            await self.report()
            await self._back_off(status)
        if status is self.status.main or code != 0:
            self.status.phase = "Succeeded" if code == 0 else "Failed"
        await self.report()
        return code == 0

    async def _back_off(self, status: ContainerStatus) -> None:
        """Wait before another start: not at all the first time, then longer each time."""
        status.last = status.state
        if status.restarts:
            seconds = min(_BACK_OFF_SECONDS * 2 ** (status.restarts - 1), _BACK_OFF_MAX)
            said = f"back-off {seconds:.0f}s restarting failed container={status.name}"
            status.state = waiting("CrashLoopBackOff", said)
            await self.report()
            await pause(seconds * self.host.second)
        status.restarts += 1

    async def _program(self, spec: Document, status: ContainerStatus) -> Program:
        """Return what a container runs, once its image and all that it refers to are there."""
        while True:
            try:
                launch = await self._launch(spec)
            except AbsentError as absent:
                status.state = waiting("CreateContainerConfigError", str(absent))
            else:
                if program := self.host.program(launch):
                    return program
                said = f'Back-off pulling image "{spec["image"]}"'
                status.state = waiting("ImagePullBackOff", said)
            await self.report()
            await pause(_RETRY_SECONDS)

    async def _launch(self, spec: Document) -> Launch:
        mounts = mounts_of(spec, self.directory / "volumes")
        pod = {**self.pod, "status": {**self.pod["status"], "podIP": self.ip, "hostIP": "127.0.0.1"}}
        found = await environment(self.host.calls, spec, pod)
        variables = {name: moved(value, mounts) for name, value in (self.host.variables() | found).items()}
        variables.setdefault("HOSTNAME", self.pod["metadata"]["name"])
        variables.setdefault("HOME", str(self.directory))
        if "/tmp" in mounts:
            variables.setdefault("TMPDIR", str(mounts["/tmp"]))
        command, args = (
            tuple(moved(expanded(text, variables), mounts) for text in spec.get(part, []))
            for part in ("command", "args")
        )
        return Launch(spec["image"], command, args, variables, mounts, self.ip, self.pod)

    async def _run_once(self, spec: Document, status: ContainerStatus, program: Program) -> int:
        """Run a container once, with its probes; return its exit code."""
        since = now()
        try:
            self.container = await Container.start(program, self.directory / "work", self.log)
        except OSError as error:
            status.state = terminated(128, reason="StartError", message=str(error), since=since, now=now())
            return 128
        self.current = status
        status.state, status.started = running(since), "startupProbe" not in spec
        if status is self.status.main:
            self.status.phase = "Running"
            status.ready = status.started and "readinessProbe" not in spec
        await self.report()
        probing = asyncio.create_task(self._probe(spec, status, self.container))
        try:
            code = await self.container.exit_code()
        finally:
            await _cancel(probing)
        self._record(status, code, "Completed" if code == 0 else "Error")
        return code

    async def _probe(self, spec: Document, status: ContainerStatus, container: Container) -> None:
        """Make the probes of a container that runs; stop it where one of them says so."""
        probes = Probes(spec, container, self.ip, self.host.second)
        if "startupProbe" in spec:
            async for passed in probes.results("startupProbe"):
                if passed:
                    break
                await self._stop(container)
                return
            status.started, status.ready = True, "readinessProbe" not in spec
            await self.report()
        async with asyncio.TaskGroup() as group:
            if "readinessProbe" in spec:
                group.create_task(self._heed_readiness(probes, status))
            if "livenessProbe" in spec:
                group.create_task(self._heed_liveness(probes, container))

    async def _heed_readiness(self, probes: Probes, status: ContainerStatus) -> None:
        async for ready in probes.results("readinessProbe"):
            if ready != status.ready:
                status.ready = ready
                await self.report()

    async def _heed_liveness(self, probes: Probes, container: Container) -> None:
        async for alive in probes.results("livenessProbe"):
            if not alive:
                await self._stop(container)

    async def _stop(self, container: Container, grace_seconds: float | None = None) -> int:
        spec = self.pod["spec"]
        grace = spec.get("terminationGracePeriodSeconds", 30) if grace_seconds is None else grace_seconds
        hook = self.spec.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        return await container.stop(grace, hook)

    async def _end(self, grace_seconds: float) -> None:
        """End a pod that is to be deleted, report how it ended, and delete it for good."""
        status = self.status
        if self.container is not None and self.container.process.returncode is None:
            code = await self._stop(self.container, grace_seconds)
            self._record(self.current, code, "Completed" if code == 0 else "Error")
        if status.phase not in {"Succeeded", "Failed"}:
            status.phase = "Succeeded" if status.main.ended() == 0 else "Failed"
        await self.report()
        await self.host.calls.remove(self.pod)

    def _record(self, status: ContainerStatus, code: int, reason: str) -> None:
        """Record how a container ended."""
        since = datetime.fromisoformat(status.state["running"]["startedAt"]) if "running" in status.state else now()
        spec = self.spec
        message = ""
        if self.container is not None:
            reason = "OOMKilled" if self.container.oom_killed else reason
            if code != 0 and spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
                message = self.container.tail()
        status.state = terminated(code, reason=reason, message=message, since=since, now=now())
        status.ready = status.started = False

    async def _stop_living(self) -> None:
        """Stop to look after the containers, which go on."""
        await _cancel(self._living)

    async def _kill(self) -> None:
        if self.container is not None:
            self.container.kill()
            await self.container.process.wait()


async def _cancel(task: "asyncio.Task[object]") -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()):
        raise error
