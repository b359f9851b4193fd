"""The service over HTTP, as a worker calls it (routes in `service.protocol.api`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import TypeAdapter

from service.protocol.api import Registered, Registration
from service.protocol.barrier import Barrier
from service.protocol.cdc import SourceConnection
from service.protocol.ids import Epoch, GraphId, SourceId, WorkerId
from service.protocol.report import Collected, Failed
from service.protocol.request import REQUEST, Analyzed, Rejected, Request, Verified

GONE = 410
SLACK_SECONDS = 20.0
"""How much longer than the service's own wait a long poll may take before the service counts as away."""


class ServiceAwayError(Exception):
    """The service did not answer, or not in words that we know: try again."""


class StaleWorkerError(Exception):
    """The service says that this worker or its generation is of the past: stop."""


@dataclass(frozen=True, slots=True)
class MetaClient:
    """Thread-safe: httpx clients are."""

    http: httpx.Client

    @classmethod
    def of(cls, url: str, token: str) -> "MetaClient":
        """Connect lazily; a connection may be kept for as long as a long poll takes."""
        headers = {"Authorization": f"Bearer {token}"}
        return cls(httpx.Client(base_url=f"{url}/internal/v1", headers=headers, timeout=SLACK_SECONDS))

    def register(self, registration: Registration) -> Registered:
        """Present this worker."""
        answer = self._call("POST", "/workers", registration.model_dump_json())
        return Registered.model_validate_json(answer.content)

    def next_barrier(self, worker: WorkerId, taken: Mapping[GraphId, Epoch]) -> Barrier | None:
        """Wait for the next barrier of any graph besides those that were taken; None when there was none in the
        service's waiting time.
        """
        known = "&".join(f"taken={graph}:{epoch}" for graph, epoch in taken.items())
        answer = self._call("GET", f"/workers/{worker}/barrier?{known}")
        return Barrier.model_validate_json(answer.content) if answer.content else None

    def answer(self, answer: Collected | Failed) -> bool:
        """Answer a barrier; may be repeated. False when its generation is over: then the answer counts for nothing."""
        try:
            self._call("POST", f"/workers/{answer.worker}/answers", answer.model_dump_json())
        except StaleWorkerError:
            # Whether the worker is of the past as well is what its next poll is told.
            return False
        return True

    def next_request(self, worker: WorkerId, graph: GraphId) -> Request | None:
        """Wait for the next question; None when there was none."""
        answer = self._call("GET", f"/workers/{worker}/request?graph={graph}")
        adapter: TypeAdapter[Any] = REQUEST
        return adapter.validate_json(answer.content) if answer.content else None

    def source(self, source: SourceId) -> SourceConnection:
        """Ask how to reach an external database; kept by nobody but the sessions that are opened with it."""
        answer = self._call("GET", f"/sources/{source}")
        return SourceConnection.model_validate_json(answer.content)

    def respond(self, worker: WorkerId, response: Analyzed | Verified | Rejected) -> None:
        """Answer a question."""
        self._call("POST", f"/workers/{worker}/responses", response.model_dump_json())

    def _call(self, method: str, path: str, body: str | None = None) -> httpx.Response:
        try:
            answer = self.http.request(method, path, content=body, headers={"Content-Type": "application/json"})
        except httpx.TransportError as error:
            raise ServiceAwayError(str(error) or type(error).__name__) from error
        if answer.status_code == GONE:
            raise StaleWorkerError(answer.text)
        if not answer.is_success:
            raise ServiceAwayError(f"{answer.status_code} {answer.text[:300]}")
        return answer
