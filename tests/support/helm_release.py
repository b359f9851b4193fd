"""A release of the chart in a real control plane, with real services and workers."""

import json
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.control_plane.api import Document, at
from tests.support.control_plane.plane import Plane
from tests.support.helm import find_helm
from tests.support.kubelet.images import ACCOUNT, Launch, Program, tidefill_service, tidefill_worker
from tests.support.kubelet.kubelet import Kubelet, running_kubelet
from tests.support.postgres import fresh_database
from tests.support.service import API_TOKEN, WORKER_TOKEN
from tests.support.waiting import PATIENCE

CHART: Final = Path(__file__).parents[2] / "helm" / "tidefill"
RELEASE: Final = "shop"
NODES: Final = ("left", "right")


@dataclass
class Release:
    """A release of the chart in a namespace of its own. `url` leads to its Service."""

    helm: Path
    plane: Plane
    kubelet: Kubelet
    namespace: str
    database: str
    url: str

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        """Run helm, which waits until everything is ready."""
        common = ("--namespace", self.namespace, "--kubeconfig", str(self.plane.servers.kubeconfig), "--wait")
        given = () if values is None else ("--values", "-")
        return subprocess.run(
            [self.helm, *arguments, *common, *given],
            input=None if values is None else json.dumps(values),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def succeeds(self, *arguments: str, values: Mapping[str, Any] | None = None) -> None:
        ran = self.run(*arguments, values=values)
        assert ran.returncode == 0, (ran.stderr, self.logs())

    def pods(self, component: str) -> list[Document]:
        """Return the pods of a component that are not about to end."""
        found = self.plane.api.items(
            at("pods", self.namespace), labelSelector=f"app.kubernetes.io/component={component}"
        )
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def images(self) -> set[str]:
        return {pod["spec"]["containers"][0]["image"] for pod in self.pods("service")}

    def logs(self) -> dict[str, str]:
        names = [pod["metadata"]["name"] for kind in ("service", "worker", "migration") for pod in self.pods(kind)]
        return {name: self.kubelet.log(self.namespace, name)[-2000:] for name in names}

    def client(self) -> httpx.Client:
        """Return a client with a connection of its own: the Service deals connections round, not calls."""
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {API_TOKEN}"}, timeout=PATIENCE)


@contextmanager
def two_nodes(plane: Plane, postgres_url: str, namespace: str) -> Generator[Release]:
    """Have two nodes, a database and its Secret: what an installation needs."""
    helm = find_helm()
    if helm is None:
        pytest.skip("needs helm, or Go to build it")
    with fresh_database(postgres_url) as database, running_kubelet(plane, {}, second=1.0) as kubelet:
        for name in NODES:
            kubelet.add_node(name, cpu="8", memory="32Gi")
        internal = kubelet.expose(namespace, f"{RELEASE}-internal")

        def service(launch: Launch) -> Program:
            program = tidefill_service(launch)
            if ACCOUNT not in launch.mounts:
                return program
            # Neither is there a name of the API server, nor a root directory for each container.
            account = {
                "TIDEFILL_KUBERNETES_URL": plane.servers.url,
                "TIDEFILL_KUBERNETES_ACCOUNT_DIR": str(launch.mounts[ACCOUNT]),
            }
            return Program(program.command, {**program.environment, **account})

        def worker(launch: Launch) -> Program:
            # There is no name service: the Service of the workers' URL is a port of this machine.
            assert launch.environment["TIDEFILL_SERVICE_URL"] == f"http://{RELEASE}-internal:8700"
            program = tidefill_worker(launch)
            there = {"TIDEFILL_SERVICE_URL": f"http://127.0.0.1:{internal}", "TIDEFILL_SPARK_MASTER": "local[2]"}
            return Program(program.command, {**program.environment, **there})

        kubelet.images.update({"tidefill/service": service, "tidefill/worker": worker})
        secret = {
            "database-url": database,
            "state-store-url": database,
            "api-token": API_TOKEN,
            "worker-token": WORKER_TOKEN,
        }
        plane.api.post(at("secrets", namespace), {"metadata": {"name": "tidefill"}, "stringData": secret})
        url = f"http://127.0.0.1:{kubelet.expose(namespace, RELEASE)}"
        yield Release(helm, plane, kubelet, namespace, database, url)
