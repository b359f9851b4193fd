"""HTTP client for the service's worker API (routes in `service.protocol.api`)."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError

from service.protocol.api import Gone, Left, Registered, Registration, SecretValue
from service.protocol.barrier import Barrier
from service.protocol.cdc import SourceConnection
from service.protocol.ids import Epoch, GraphId, RequestId, SourceId, WorkerId
from service.protocol.report import Collected, Failed
from service.protocol.request import REQUEST, Request, Response

GONE = 410
_TOO_LARGE: Final = 413
_NOT_TAKEN: Final = frozenset({400, _TOO_LARGE, 422})
SLACK_SECONDS = 20.0
"""Timeout of each call. It is far longer than the service waits in a long poll (`Registered.wait_seconds`, 3 s), so a
service that exceeds it counts as away.
"""


_NEXT: Final[TypeAdapter[Barrier | Gone]] = TypeAdapter(Barrier | Gone)


class ServiceAwayError(Exception):
    """The service did not answer, or answered with an unexpected status. The caller may try again."""


class NotTakenError(Exception):
    """The service will never take an answer: it is too large, or nothing that the service reads."""


class StaleWorkerError(Exception):
    """The service answered 410: this worker or its generation is over. The caller must stop."""


@dataclass(frozen=True, slots=True)
class MetaClient:
    """Calls of the worker API. Thread-safe, because httpx clients are."""

    http: httpx.Client

    @classmethod
    def of(cls, url: str, token: str) -> "MetaClient":
        """Make a client. It connects at the first call, and waits up to `SLACK_SECONDS` for an answer."""
        headers = {"Authorization": f"Bearer {token}"}
        return cls(httpx.Client(base_url=f"{url}/internal/v1", headers=headers, timeout=SLACK_SECONDS))

    def register(self, registration: Registration) -> Registered:
        """Register this worker."""
        answer = self._call("POST", "/workers", _body(registration))
        return Registered.model_validate_json(answer.content)

    def leave(self, worker: WorkerId) -> bool:
        """Say that this worker is about to end. Return whether its graphs run elsewhere, after a wait."""
        return Left.model_validate_json(self._call("POST", f"/workers/{worker}/leaving").content).relieved

    def next_barrier(self, worker: WorkerId, taken: Mapping[GraphId, Epoch]) -> Barrier | Gone | None:
        """Wait for the next barrier of any graph that is newer than those in `taken`, or until one of these graphs is
        gone. None when the service had none within its waiting time.
        """
        known = "&".join(f"taken={graph}:{epoch}" for graph, epoch in taken.items())
        answer = self._call("GET", f"/workers/{worker}/barrier?{known}")
        return _NEXT.validate_json(answer.content) if answer.content else None

    def answer(self, answer: Collected | Failed) -> bool:
        """Send the answer to a barrier; sending it twice is harmless. False when the barrier's generation is over: the
        answer is then discarded. Raises NotTakenError.
        """
        try:
            # A service of another version, which is being replaced, may refuse it for another reason.
            self._taken(f"/workers/{answer.worker}/answers", _body(answer), but={_TOO_LARGE})
        except StaleWorkerError:
            # The next poll tells whether the worker itself is stale as well.
            return False
        return True

    def next_request(self, worker: WorkerId, graph: GraphId) -> Request | None:
        """Wait for the next request of the service; None when there was none within its waiting time."""
        answer = self._call("GET", f"/workers/{worker}/request?graph={graph}")
        adapter: TypeAdapter[Any] = REQUEST
        return adapter.validate_json(answer.content) if answer.content else None

    def is_wanted(self, request: RequestId) -> bool:
        """Ask whether somebody waits for the answer to a request. So it is said if the service does not answer."""
        try:
            return bool(self._call("GET", f"/requests/{request}").json())
        except (ServiceAwayError, StaleWorkerError):
            return True

    def source(self, source: SourceId) -> SourceConnection:
        """Ask how to reach an external database. The answer is not cached: only the sessions opened with it hold it."""
        answer = self._call("GET", f"/sources/{source}")
        return SourceConnection.model_validate_json(answer.content)

    def secret(self, name: str) -> str:
        """Ask for the value of a secret that an option of a sink names. It is not cached either."""
        answer = self._call("GET", f"/secrets?name={quote(name, safe='')}")
        return SecretValue.model_validate_json(answer.content).value

    def respond(self, worker: WorkerId, response: Response) -> None:
        """Send the response to a request. Raises NotTakenError."""
        self._taken(f"/workers/{worker}/responses", _body(response), but=_NOT_TAKEN)

    def _taken(self, path: str, body: str, *, but: Collection[int]) -> None:
        """Send a body. Raises NotTakenError for the statuses in `but`."""
        answer = self._sent("POST", path, body)
        if answer.status_code in but:
            raise NotTakenError(_said(answer))
        _check(answer)

    def _call(self, method: str, path: str, body: str | None = None) -> httpx.Response:
        answer = self._sent(method, path, body)
        _check(answer)
        return answer

    def _sent(self, method: str, path: str, body: str | None) -> httpx.Response:
        try:
            answer = self.http.request(method, path, content=body, headers={"Content-Type": "application/json"})
        except httpx.TransportError as error:
            raise ServiceAwayError(str(error) or type(error).__name__) from error
        if answer.status_code == GONE:
            raise StaleWorkerError(answer.text)
        return answer


def _body(message: BaseModel) -> str:
    try:
        return message.model_dump_json()
    except PydanticSerializationError:
        # A reason may quote a name of a file or a log with lone surrogates, which UTF-8 does not have.
        text = json.dumps(message.model_dump(mode="json"), ensure_ascii=False)
        return text.encode(errors="replace").decode()


def _check(answer: httpx.Response) -> None:
    if not answer.is_success:
        raise ServiceAwayError(_said(answer))


def _said(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.text[:300]}"
