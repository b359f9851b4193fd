"""A small API server on loopback: pods and ConfigMaps of one namespace, over HTTP and JSON as a real one answers.

Nothing is scheduled, and nothing runs. A test gives each pod its status.
"""

import copy
import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

NAMESPACE = "data"
VERSION = "1.33"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer in place of the ordinary one: the API's `Status`, or a proxy's page, which has no reason."""

    status: int
    reason: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    query: Mapping[str, str]
    token: str
    body: Any


@dataclass
class FakeApi:
    """The server's contents, which tests read and change."""

    pods: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    config_maps: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    refusals: dict[tuple[str, str], Refusal] = field(default_factory=dict[tuple[str, str], Refusal])
    """By method and resource (`pods`, `configmaps`)."""
    calls: list[Call] = field(default_factory=list[Call])
    url: str = ""
    silent: threading.Event | None = None
    """Set by a test: every call waits for it, unanswered."""

    def put_config_map(self, name: str, data: Mapping[str, Any]) -> None:
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in data.items()}
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-of-{name}"}
        self.config_maps[name] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": texts}

    def becomes(self, name: str, phase: str, **status: Any) -> None:
        """Give a pod a status."""
        self.pods[name]["status"] = {"phase": phase, **status}

    def made(self, method: str) -> list[Call]:
        """Return the calls that changed something, or tried to."""
        return [one for one in self.calls if one.method == method and "dryRun" not in one.query]

    # Answers.

    def answer(self, call: Call) -> tuple[int, Any]:
        self.calls.append(call)
        *_, namespace, resource, name = [*call.path.strip("/").split("/"), ""][:6]
        assert namespace == NAMESPACE
        if (refusal := self.refusals.get((call.method, resource))) is not None:
            return refusal.status, _status(refusal) if refusal.reason is not None else refusal.message
        match call.method, resource:
            case "GET", "configmaps":
                return self._found(self.config_maps, resource, name)
            case "GET", "pods":
                return 200, {"kind": "PodList", "apiVersion": "v1", "items": self._selected(call.query)}
            case "POST", "pods":
                return self._created(call)
            case "DELETE", "pods":
                return self._deleted(name)
            case _:
                raise AssertionError(call)

    def _found(self, kept: Mapping[str, Any], resource: str, name: str) -> tuple[int, Any]:
        missing = Refusal(404, "NotFound", f'{resource} "{name}" not found')
        return (200, kept[name]) if name in kept else (404, _status(missing))

    def _selected(self, query: Mapping[str, str]) -> list[Any]:
        wanted = dict(one.split("=", 1) for one in query["labelSelector"].split(","))
        return [pod for pod in self.pods.values() if wanted.items() <= pod["metadata"]["labels"].items()]

    def _created(self, call: Call) -> tuple[int, Any]:
        pod = copy.deepcopy(call.body)
        kubernetes_validate.validate(pod, VERSION, strict=True)
        name = pod["metadata"]["name"]
        if name in self.pods:
            return 409, _status(Refusal(409, "AlreadyExists", f'pods "{name}" already exists'))
        pod["metadata"].update(uid=f"uid-of-{name}", namespace=NAMESPACE)
        pod["status"] = {"phase": "Pending"}
        if "dryRun" not in call.query:
            self.pods[name] = pod
        return 201, pod

    def _deleted(self, name: str) -> tuple[int, Any]:
        if name not in self.pods:
            return self._found(self.pods, "pods", name)
        pod = self.pods[name]
        if pod["status"]["phase"] in {"Failed", "Succeeded"}:
            del self.pods[name]
        else:  # its node has to end it first
            pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
        return 200, pod


def _status(refusal: Refusal) -> Mapping[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": refusal.message,
        "reason": refusal.reason,
        "code": refusal.status,
    }


@contextmanager
def fake_api(directory: Path) -> Generator[FakeApi]:
    """Serve on loopback. `directory` gets the files of a service account."""
    api = FakeApi()
    (directory / "token").write_text("token-1\n")
    (directory / "namespace").write_text(NAMESPACE)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            if api.silent is not None:
                api.silent.wait()
            target = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(target.query).items()}
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            status, answer = api.answer(Call(self.command, target.path, query, token, body))
            text = answer if isinstance(answer, str) else json.dumps(answer)
            with suppress(OSError):  # nobody waits for a late answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - names of the library

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            del code, size

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
