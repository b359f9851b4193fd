"""Calls of the Kubernetes API over plain HTTP, as one account."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx

from tests.support.waiting import PATIENCE, until

Document: TypeAlias = dict[str, Any]
_GROUPS: Final[Mapping[str, str]] = {
    "deployments": "apis/apps/v1",
    "jobs": "apis/batch/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "priorityclasses": "apis/scheduling.k8s.io/v1",
    "replicasets": "apis/apps/v1",
    "rolebindings": "apis/rbac.authorization.k8s.io/v1",
    "roles": "apis/rbac.authorization.k8s.io/v1",
}
MERGE: Final = {"Content-Type": "application/merge-patch+json"}
STRATEGIC: Final = {"Content-Type": "application/strategic-merge-patch+json"}


class RefusedError(Exception):
    """The API server refused a call; `text` is the message of its Status."""

    def __init__(self, answer: httpx.Response) -> None:
        self.status = answer.status_code
        self.document: Document = answer.json() if "json" in answer.headers.get("Content-Type", "") else {}
        self.text: str = self.document.get("message", answer.text)
        super().__init__(f"{answer.request.method} {answer.request.url.path}: {self.status} {self.text}")


def at(resource: str, namespace: str | None = None, name: str | None = None, *more: str) -> str:
    """Return the path of a resource, as `/api/v1/namespaces/team/pods/worker/status`."""
    within = () if namespace is None else ("namespaces", namespace)
    named = () if name is None else (name,)
    return "/".join(("", _GROUPS.get(resource, "api/v1"), *within, resource, *named, *more))


def trusting(ca: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca))


def checked(answer: httpx.Response) -> Document:
    """Return the answer's document. Raises RefusedError."""
    if answer.status_code >= 400:
        raise RefusedError(answer)
    return answer.json()


def condition(document: Document, kind: str) -> Document:
    """Return a condition of an object's status; an empty document where it has none of this type."""
    found = document.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == kind), {})


@dataclass
class Api:
    """The API as the account sees it whose token this is."""

    url: str
    ca: Path
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        self.http = httpx.Client(base_url=self.url, headers=headers, verify=trusting(self.ca), timeout=60)

    def close(self) -> None:
        self.http.close()

    def get(self, path: str, **parameters: str) -> Document:
        return checked(self.http.get(path, params=parameters))

    def items(self, path: str, **parameters: str) -> list[Document]:
        return self.get(path, **parameters)["items"]

    def post(self, path: str, body: Document, **parameters: str) -> Document:
        return checked(self.http.post(path, json=body, params=parameters))

    def patch(self, path: str, body: Document) -> Document:
        """Apply a JSON merge patch."""
        return checked(self.http.patch(path, json=body, headers=MERGE))

    def delete(self, path: str, **options: Any) -> Document:
        """Delete an object, or all of a collection, with these DeleteOptions."""
        return checked(self.http.request("DELETE", path, json=options))

    def find(self, path: str) -> Document | None:
        """Return an object; None where there is none."""
        try:
            return self.get(path)
        except RefusedError as refused:
            if refused.status != 404:
                raise
            return None

    def until(self, path: str, holds: Callable[[Document], object], *, seconds: float = PATIENCE) -> Document:
        """Wait until an object is there and something holds of it; return it."""
        return until(
            lambda: found if (found := self.find(path)) and holds(found) else None,
            what=lambda: f"{path}: {self.find(path)}",
            seconds=seconds,
        )

    def until_gone(self, path: str, *, seconds: float = PATIENCE) -> None:
        until(lambda: self.find(path) is None, what=lambda: f"gone: {self.find(path)}", seconds=seconds)

    def until_phase(self, namespace: str, pod: str, phase: str, *, seconds: float = PATIENCE) -> Document:
        """Wait for a pod's phase; return the pod."""
        return self.until(at("pods", namespace, pod), lambda found: found["status"]["phase"] == phase, seconds=seconds)
