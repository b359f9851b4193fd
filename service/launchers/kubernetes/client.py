"""Call the Kubernetes API: list, create and delete pods, and read one ConfigMap. Nothing is watched.

The files of the pod's service account are the credentials. Its token rotates, so every call reads it again.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpx

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_SECONDS: Final = 5.0
_NOT_FOUND: Final = 404
_MESSAGE_MAX: Final = 2_000
"""An admission webhook may answer with pages of text."""

Document = Mapping[str, Any]


@dataclass(eq=False)
class ApiError(Exception):
    """The API refused a call, or did not answer it (`status` 0). `message` is for users and has no secret."""

    status: int
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}"


class KubernetesClient:
    """One namespace, as one service account. Every method raises ApiError."""

    def __init__(self, url: str, account: Path = SERVICE_ACCOUNT, *, namespace: str | None = None) -> None:
        """`account` has the files `token`, `ca.crt` and `namespace`. The last is read if no namespace is given.

        Raises OSError if a file is missing.
        """
        self.namespace = namespace or (account / "namespace").read_text().strip()
        self._token = account / "token"
        authorities: ssl.SSLContext | bool = True
        if url.startswith("https://"):
            authorities = ssl.create_default_context(cafile=account / "ca.crt")
        # Without proxies and credentials from the environment.
        self._http = httpx.AsyncClient(base_url=url, verify=authorities, timeout=TIMEOUT_SECONDS, trust_env=False)

    async def pods(self, labels: Mapping[str, str]) -> Sequence[Document]:
        """Return the pods with these labels.

        The read is consistent. A cached one (`resourceVersion=0`) could lack a pod that was created before it.
        """
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        found = await self._call("GET", "pods", parameters={"labelSelector": selector})
        return cast("Sequence[Document]", found.get("items") or ())

    async def create(self, pod: Document, *, dry_run: bool = False) -> None:
        """Create a pod. A pod of that name that exists already is a success.

        With `dry_run` everything is checked and nothing is created.
        """
        parameters = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        try:
            await self._call("POST", "pods", parameters=parameters, body=pod)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def delete(self, name: str, *, grace_seconds: int | None = None) -> None:
        """Delete a pod. None is the grace of the pod itself. An absent pod is a success."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            await self._call("DELETE", f"pods/{name}", body={**options, **grace})
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise

    async def config_map(self, name: str) -> Document:
        """Return a ConfigMap."""
        return await self._call("GET", f"configmaps/{name}")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _call(
        self, method: str, path: str, *, parameters: Mapping[str, str] | None = None, body: Document | None = None
    ) -> Document:
        try:
            # The library's timeouts apply to each part of the exchange, this one to all of it.
            async with asyncio.timeout(TIMEOUT_SECONDS):
                token = (await asyncio.to_thread(self._token.read_text)).strip()
                answer = await self._http.request(
                    method,
                    f"/api/v1/namespaces/{self.namespace}/{path}",
                    params=parameters,
                    json=body,
                    headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
                )
        except (TimeoutError, httpx.TimeoutException):
            raise ApiError(0, "Timeout", f"the API did not answer within {TIMEOUT_SECONDS:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ApiError(0, "Unreachable", f"the API could not be reached: {error}") from None
        except OSError as error:
            raise ApiError(0, "NoToken", f"the token of the service account cannot be read: {error.strerror}") from None
        return _document(answer)


def _document(answer: httpx.Response) -> Document:
    """Return the answer's JSON object. A refusal is a `Status` object, except from proxies in between."""
    try:
        read: object = answer.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        read = None
    found = cast("Document", read) if isinstance(read, dict) else None
    if answer.is_success and found is not None:
        return found
    said = found or {}
    reason = str(said.get("reason") or answer.reason_phrase)
    message = str(said.get("message") or f"the API answered {answer.status_code} {answer.reason_phrase}")
    raise ApiError(answer.status_code, reason, message[:_MESSAGE_MAX])
