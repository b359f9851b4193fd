"""Workers as pods of a real control plane, with the rights and the templates of the chart: a job's status says what is
wrong with them, whatever it is.
"""

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
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

pytestmark = [pytest.mark.e2e, pytest.mark.own_service, pytest.mark.control_plane, pytest.mark.timeout(900)]
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

    def manifests(self, image: str = "tidefill/worker") -> dict[str, Document]:
        """Return what the chart makes for a launcher, by kind."""
        values = {"worker": {"launcher": "kubernetes", "image": {"repository": image}, "sparkMaster": "local[2]"}}
        command = (self.helm, "template", RELEASE, CHART, "--namespace", self.namespace, "--kube-version", "1.36.0")
        ran = subprocess.run(
            [*command, "--values", "-"], input=json.dumps(values), capture_output=True, text=True, check=True
        )
        found = [one for one in yaml.safe_load_all(ran.stdout) if one]
        return {one["kind"]: one for one in found if one["kind"] in KINDS}

    def pods(self) -> dict[str, Document]:
        """Return the workers' pods by name."""
        selector = "app.kubernetes.io/component=worker"
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


@pytest.fixture
def tides(control_plane: Plane, postgres_url: str, namespace: str, tmp_path: Path) -> Iterator[Tides]:
    helm = find_helm()
    if helm is None:
        pytest.skip("needs helm, or Go to build it")
    account = tmp_path / "account"
    account.mkdir()

    with (
        fresh_database(postgres_url) as database,
        running_kubelet(control_plane, {"tidefill/worker": tidefill_worker}, second=1.0) as kubelet,
        data_directory() as directory,
    ):
        kubelet.add_node(f"node-{secrets.token_hex(2)}", cpu="8", memory="32Gi")
        environment = {
            "TIDEFILL_DATABASE_URL": database,
            "TIDEFILL_LAUNCHER": "kubernetes",
            "TIDEFILL_KUBERNETES_TEMPLATES": TEMPLATES,
            "TIDEFILL_KUBERNETES_URL": control_plane.servers.url,
            "TIDEFILL_KUBERNETES_ACCOUNT_DIR": str(account),
        }
        service = Service(directory, environment)
        made = Tides(helm, control_plane, kubelet, namespace, service)
        manifests = made.manifests("nowhere/worker")
        for kind in KINDS:
            control_plane.api.post(at(f"{kind.lower()}s", namespace), manifests[kind])
        texts = {"state-store-url": database, "worker-token": WORKER_TOKEN}
        control_plane.api.post(at("secrets", namespace), {"metadata": {"name": "tidefill"}, "stringData": texts})
        (account / "token").write_text(control_plane.token(namespace, RELEASE))
        (account / "ca.crt").write_bytes(control_plane.servers.ca.read_bytes())
        (account / "namespace").write_text(namespace)
        try:
            service.start(ready=False)
            until(service.is_alive, what=service.log_tail)
            yield made
        finally:
            service.clear()


def test_workers_are_pods_and_a_job_says_what_is_wrong_with_them(tides: Tides) -> None:
    service, plane, namespace = tides.service, tides.plane, tides.namespace
    created = service.later("CREATE TABLE t (v int PRIMARY KEY)")
    ((table,),) = until(lambda: service.stored("select id from tidefill.job") or None, what=service.log_tail)
    tides.until_why(table, "the worker is held up", "nowhere/worker")
    assert [facts["cause"] for facts in tides.events("worker.held_up")] == ["ImagePullBackOff"]

    plane.api.patch(at("configmaps", namespace, TEMPLATES), {"data": tides.manifests()["ConfigMap"]["data"]})
    created.result()
    service.run("INSERT INTO t SELECT g FROM generate_series(1, 2000) g")
    slow = "CREATE MATERIALIZED VIEW m WITH (backfill_rate_limit = 1) AS SELECT v, v + 1 AS w FROM t"
    service.run(slow, background_ddl="true", streaming_parallelism="1")
    job = service.job("m")

    # A worker that is killed has a successor of another name, and its end says how.
    killed = tides.kill()
    assert tides.worker(besides=killed) != killed
    assert "signal 9" in tides.events("worker.lost")[-1]["reason"]
    assert tides.pods()[killed]["status"]["phase"] == "Failed", "it is kept for its log"

    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "1"}}}
    plane.api.post(at("resourcequotas", namespace), quota)
    plane.api.until(at("resourcequotas", namespace, "none"), lambda found: found.get("status", {}).get("used"))
    plane.api.patch(at("resourcequotas", namespace, "none"), {"spec": {"hard": {"pods": "0"}}})
    plane.api.until(at("resourcequotas", namespace, "none"), lambda found: found["status"]["hard"]["pods"] == "0")
    killed = tides.kill()
    tides.until_why(job, "the worker is held up", "exceeded quota: none")
    plane.api.delete(at("resourcequotas", namespace, "none"))
    assert tides.worker(besides=killed)

    rules = tides.manifests()["Role"]["rules"]
    rules[0]["verbs"].remove("create")
    plane.api.patch(at("roles", namespace, LAUNCHER), {"rules": rules})
    killed = tides.kill()
    tides.until_why(job, "the worker is held up", 'cannot create resource "pods"')
    rules[0]["verbs"].append("create")
    plane.api.patch(at("roles", namespace, LAUNCHER), {"rules": rules})
    assert tides.worker(besides=killed)
    causes = [facts["cause"] for facts in tides.events("worker.held_up")]
    assert [one for one in causes if one in {"ImagePullBackOff", "quota", "forbidden"}] == causes
    assert {"quota", "forbidden"} <= set(causes)

    service.limit(job, None)
    service.until_created("m")
    assert service.value("SELECT count(*) FROM m") == 2000

    # A job with a worker of its own has a pod, which goes with the job's graph.
    own = "CREATE MATERIALIZED VIEW n WITH (cloud.serverless_backfill_enabled = true) AS SELECT v FROM t"
    service.run(own)
    registered = [facts["worker"] for facts in tides.events("worker.registered") if facts["graph"] != 1]
    assert len(registered) == 1
    until(lambda: registered[0] not in tides.pods(), what=tides.said)
    until(lambda: [facts["worker"] for facts in tides.events("worker.stopped")] == registered, what=tides.said)

    # Workers go on without the service, and go with the chart.
    worker = tides.worker()
    service.stop()
    assert tides.pods()[worker]["status"]["phase"] == "Running"
    plane.api.delete(at("configmaps", namespace, TEMPLATES))
    until(lambda: not tides.pods(), what=lambda: tides.pods().keys())
