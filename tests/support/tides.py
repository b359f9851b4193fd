"""A service beside a real control plane, with the rights and the templates of the chart."""

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.control_plane.api import Document, at
from tests.support.control_plane.plane import Plane
from tests.support.helm import find_helm
from tests.support.kubelet.images import tidefill_worker
from tests.support.kubelet.kubelet import Kubelet, running_kubelet
from tests.support.postgres import fresh_database
from tests.support.service import WORKER_TOKEN, Service, data_directory
from tests.support.waiting import until

CHART: Final = Path(__file__).parents[2] / "helm" / "tidefill"
RELEASE: Final = "tides"
TEMPLATES: Final = f"{RELEASE}-worker"
KINDS: Final = ("ServiceAccount", "Role", "RoleBinding", "ConfigMap")
LAUNCHER: Final = f"{RELEASE}-launcher"


@dataclass
class Tides:
    """A service beside a cluster, in which it has the rights that the chart gives it."""

    helm: Path
    plane: Plane
    kubelet: Kubelet
    namespace: str
    service: Service
    worker_values: Mapping[str, Any]
    """Values of the chart for workers."""

    def manifests(self, image: str = "tidefill/worker") -> list[Document]:
        """Return what the chart makes for a launcher and its workers."""
        values = {"worker": {"launcher": "kubernetes", "image": {"repository": image}, **self.worker_values}}
        command = (self.helm, "template", RELEASE, CHART, "--namespace", self.namespace, "--kube-version", "1.36.0")
        ran = subprocess.run(
            [*command, "--values", "-"], input=json.dumps(values), capture_output=True, text=True, check=True
        )
        return [one for one in yaml.safe_load_all(ran.stdout) if one and one["kind"] in KINDS]

    def manifest(self, kind: str, name: str) -> Document:
        """Return one of them."""
        return next(one for one in self.manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name))

    def pods(self, component: str = "worker") -> dict[str, Document]:
        """Return the pods of workers, or of executors, by name."""
        selector = f"app.kubernetes.io/component={component}"
        found = self.plane.api.items(at("pods", self.namespace), labelSelector=selector)
        return {pod["metadata"]["name"]: pod for pod in found}

    def worker(self, *, besides: str = "") -> str:
        """Wait until the database graph has a worker; return its name."""

        def serves(worker: dict[str, Any]) -> bool:
            return worker["graph"] == 1 and worker["worker"] != besides

        found = until(
            lambda: next(filter(serves, self.service.workers()), None), what=lambda: f"a worker: {self.said()}"
        )
        assert found["worker"] in self.pods()
        return str(found["worker"])

    def kill(self) -> str:
        """SIGKILL of the worker of the database graph; return its name."""
        worker = self.worker()
        os.kill(self.kubelet.pid(self.namespace, worker), signal.SIGKILL)
        return worker

    def why(self, job: int) -> str:
        return str(self.service.detail(job)["job"]["waiting"])

    def until_why(self, job: int, *parts: str) -> None:
        until(
            lambda: all(part in self.why(job) for part in parts),
            what=lambda: f"{parts}: {self.why(job)}; {self.said()}",
        )

    def events(self, kind: str) -> list[Any]:
        return [
            facts
            for (facts,) in self.service.stored(f"select facts from tidefill.event where kind = '{kind}' order by id")
        ]

    def said(self) -> tuple[object, ...]:
        status = {name: pod["status"] for name, pod in self.pods().items()}
        return (self.service.stored("select * from tidefill.launch"), status, self.service.log_tail())


@contextmanager
def running_tides(
    plane: Plane, postgres_url: str, namespace: str, directory: Path, worker_values: Mapping[str, Any], *, image: str
) -> Generator[Tides]:
    """Start a service whose workers have this image at first. `directory` is empty."""
    helm = find_helm()
    if helm is None:
        pytest.skip("needs helm, or Go to build it")
    account = directory / "account"
    account.mkdir()
    with (
        fresh_database(postgres_url) as database,
        running_kubelet(plane, {"tidefill/worker": tidefill_worker}, second=1.0) as kubelet,
        data_directory() as data,
    ):
        kubelet.add_node(f"node-{secrets.token_hex(2)}", cpu="8", memory="32Gi")
        environment = {
            "TIDEFILL_DATABASE_URL": database,
            "TIDEFILL_LAUNCHER": "kubernetes",
            "TIDEFILL_KUBERNETES_TEMPLATES": TEMPLATES,
            "TIDEFILL_KUBERNETES_URL": plane.servers.url,
            "TIDEFILL_KUBERNETES_ACCOUNT_DIR": str(account),
        }
        service = Service(data, environment)
        made = Tides(helm, plane, kubelet, namespace, service, worker_values)
        for one in made.manifests(image):
            plane.api.post(at(f"{one['kind'].lower()}s", namespace), one)
        texts = {"state-store-url": database, "worker-token": WORKER_TOKEN}
        plane.api.post(at("secrets", namespace), {"metadata": {"name": "tidefill"}, "stringData": texts})
        (account / "token").write_text(plane.token(namespace, RELEASE))
        (account / "ca.crt").write_bytes(plane.servers.ca.read_bytes())
        (account / "namespace").write_text(namespace)
        try:
            service.start(ready=False)
            until(service.is_alive, what=service.log_tail)
            yield made
        finally:
            service.clear()
