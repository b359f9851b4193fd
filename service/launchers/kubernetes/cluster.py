"""Run workers as bare pods. The name of a pod is the id of its worker, and is never used twice.

No controller of Kubernetes stands in between (Job, Deployment), because retries, back-off and fences are the service's
own: a second one would work against them. Next: `service.launchers.kubernetes.judge`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from service.domain.launching import LEAVING, HeldUp, Launch, Over, OwnJob, Runs, Seen
from service.launchers.kubernetes.client import ApiError, Document, KubernetesClient
from service.launchers.kubernetes.judge import judge, refusal
from service.launchers.kubernetes.pods import (
    DATABASE,
    TEMPLATE,
    TemplateError,
    Templates,
    labels_of,
    pod_name,
    pod_of,
)
from service.ports.clock import Clock
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId, WorkerId

_KILL_SECONDS: Final = 1
"""A worker that hangs is killed. With 0 its pod would vanish before its node knows of it."""


async def profiles(client: KubernetesClient, templates: str) -> Collection[str] | None:
    """See `service.ports.launcher.Profiles`. `templates` is the name of the ConfigMap."""
    try:
        return Templates.of(await client.config_map(templates)).texts.keys()
    except ApiError:
        return None


class KubernetesCluster:
    """Implements `service.ports.launcher.Cluster`."""

    def __init__(
        self,
        client: KubernetesClient,
        *,
        templates: str,
        installation: str,
        service_url: str,
        clock: Clock,
        chance: Callable[[], str],
    ) -> None:
        """`templates` is the name of the ConfigMap. `chance` returns four random hexadecimal digits."""
        self._client = client
        self._templates = templates
        self._installation = installation
        self._service_url = service_url
        self._clock = clock
        self._chance = chance
        self._hashes: dict[str, str] = {}
        """The templates as of the last `check`, by profile."""
        self._checked: dict[str, str] = {}

    def name(self, graph: GraphId, attempt: int) -> WorkerId:
        """See the port."""
        return pod_name(self._templates, graph, attempt, self._chance())

    async def check(self) -> Mapping[str, HeldUp | None]:
        """See the port. A template that could not be examined is examined by the next call."""
        try:
            templates = Templates.of(await self._client.config_map(self._templates))
        except ApiError:
            return {}  # every start meets the same and says so
        self._hashes = {profile: templates.hash(profile) for profile in templates.texts}
        found: dict[str, HeldUp | None] = {}
        for profile in templates.texts:
            if self._checked.get(profile) == self._hashes[profile]:
                continue
            own = None if profile == DATABASE else OwnJob(JobId(0), profile)
            graph = DATABASE_GRAPH if own is None else GraphId(DATABASE_GRAPH + 1)
            launch = Launch(self.name(graph, 0), graph, 0, self._clock.now())
            answer = await self._create(launch, own, templates, dry_run=True)
            if answer is None or answer.cause != "unavailable":
                self._checked[profile] = self._hashes[profile]
                found[profile] = answer
        return found

    async def look(self) -> Mapping[WorkerId, Seen] | HeldUp:
        """See the port."""
        try:
            found = await self._client.pods(labels_of(self._templates, self._installation))
        except ApiError as error:
            return refusal(error)
        return {WorkerId(pod["metadata"]["name"]): self._judge(pod) for pod in found}

    async def start(self, launch: Launch, own: OwnJob | None) -> HeldUp | None:
        """See the port. The ConfigMap is read each time, because reinstalling the chart gives it another id."""
        try:
            templates = Templates.of(await self._client.config_map(self._templates))
        except ApiError as error:
            return refusal(error)
        return await self._create(launch, own, templates, dry_run=False)

    async def end(self, worker: WorkerId, *, kill: bool) -> HeldUp | None:
        """See the port."""
        try:
            await self._client.delete(worker, grace_seconds=_KILL_SECONDS if kill else None)
        except ApiError as error:
            return refusal(error)
        return None

    def _judge(self, pod: Document) -> Seen:
        """Judge a pod. One that is held up may start with a template that was repaired, so it ends."""
        found = judge(pod)
        outdated = self._hashes and pod["metadata"]["labels"].get(TEMPLATE) not in self._hashes.values()
        match found:
            case HeldUp(cause, text) if outdated and cause != LEAVING:
                return Over(f"its template has changed, and it was held up: {text}", failed=False)
            case Runs() if outdated:
                return replace(found, outdated=True)
            case _:
                return found

    async def _create(
        self, launch: Launch, own: OwnJob | None, templates: Templates, *, dry_run: bool
    ) -> HeldUp | None:
        try:
            pod = pod_of(launch, own, templates, installation=self._installation, service_url=self._service_url)
            await self._client.create(pod, dry_run=dry_run)
        except TemplateError as error:
            return HeldUp("template", str(error))
        except ApiError as error:
            return refusal(error)
        return None
