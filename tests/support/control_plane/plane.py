"""A running control plane: its API as the administrator sees it, and namespaces for tests."""

import secrets
import ssl
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.support.control_plane.api import Api, at, trusting
from tests.support.control_plane.servers import Servers, servers
from tests.support.waiting import until


@dataclass
class Plane:
    """An administrator's view of a control plane, and how others connect to it."""

    servers: Servers
    api: Api
    clients: list[Api] = field(default_factory=list[Api])

    def create_namespace(self, prefix: str = "test") -> str:
        """Make a namespace in which pods can be created; return its name."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.api.post(at("namespaces"), {"metadata": {"name": name}})
        # Pods are refused until the controllers have made these.
        self.api.until(at("serviceaccounts", name, "default"), bool)
        self.api.until(at("configmaps", name, "kube-root-ca.crt"), bool)
        return name

    def remove_namespace(self, name: str) -> None:
        """End the pods of a namespace without grace, and delete it without waiting for that."""
        self.api.delete(at("pods", name), gracePeriodSeconds=0)
        self.api.delete(at("namespaces", None, name))

    def create_account(self, namespace: str, name: str, *rules: tuple[str, str]) -> str:
        """Make a ServiceAccount with rights in its namespace; return a token of it.

        A rule is resources and verbs, as `("pods", "create,list")`; the resources are of the core group.
        """
        self.api.post(at("serviceaccounts", namespace), {"metadata": {"name": name}})
        self.api.post(
            at("roles", namespace),
            {
                "metadata": {"name": name},
                "rules": [
                    {"apiGroups": [""], "resources": resources.split(","), "verbs": verbs.split(",")}
                    for resources, verbs in rules
                ],
            },
        )
        self.api.post(
            at("rolebindings", namespace),
            {
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            },
        )
        return self.token(namespace, name)

    def token(self, namespace: str, account: str) -> str:
        """Return a token of a ServiceAccount that is valid for an hour."""
        asked = {"spec": {"expirationSeconds": 3600}}
        return self.api.post(at("serviceaccounts", namespace, account, "token"), asked)["status"]["token"]

    def client(self, token: str) -> Api:
        """Return the API as the account of this token sees it."""
        self.clients.append(Api(self.servers.url, self.servers.ca, token))
        return self.clients[-1]


@contextmanager
def running_plane(program: Path) -> Generator[Plane]:
    """Run a control plane on loopback until the end."""
    with (
        tempfile.TemporaryDirectory(prefix="tidefill-plane-", ignore_cleanup_errors=True) as directory,
        servers(program, Path(directory)) as started,
    ):
        started.start_api()
        until(lambda: _has_certificate(started), what="a certificate of the API server")
        plane = Plane(started, Api(started.url, started.ca, started.token))
        try:
            until(lambda: _answers(plane), what=lambda: f"ready: {started.log('kube-apiserver').read_text()[-3000:]}")
            started.start_controllers()
            yield plane
            started.assert_alive()
        finally:
            for client in (plane.api, *plane.clients):
                client.close()


def _has_certificate(started: Servers) -> bool:
    started.assert_alive()
    try:
        trusting(started.ca)
    except (OSError, ssl.SSLError):  # it is not there, or not whole yet
        return False
    return True


def _answers(plane: Plane) -> bool:
    plane.servers.assert_alive()
    try:
        return plane.api.http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def fresh_namespace(plane: Plane) -> Generator[str]:
    """A namespace that is removed at the end."""
    name = plane.create_namespace()
    try:
        yield name
    finally:
        plane.remove_namespace(name)
