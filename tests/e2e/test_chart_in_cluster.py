"""The chart in a real cluster: installed, upgraded, rolled back and removed, with real services and a real worker."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pytest

from tests.support.control_plane.api import Document, at, condition
from tests.support.control_plane.plane import Plane
from tests.support.helm import find_helm
from tests.support.kubelet.images import Launch, Program, tidefill_service, tidefill_worker
from tests.support.kubelet.kubelet import Kubelet, running_kubelet
from tests.support.postgres import fresh_database
from tests.support.service import API_TOKEN, WORKER_TOKEN
from tests.support.waiting import PATIENCE, Repeating, until

pytestmark = [pytest.mark.e2e, pytest.mark.own_service, pytest.mark.control_plane, pytest.mark.timeout(900)]
CHART: Final = Path(__file__).parents[2] / "helm" / "tidefill"
RELEASE: Final = "shop"


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

    def ask(self, *statements: str) -> list[list[Any]]:
        """Run statements; return the rows of the last."""
        rows: list[list[Any]] = []
        for text in statements:
            with self.client() as http:
                answer = http.post("/v1/sql", json={"sql": text})
                assert answer.status_code == 200, (answer.text, self.logs())
                rows = answer.json()["rows"]
        return rows

    def client(self) -> httpx.Client:
        """Return a client with a connection of its own: the Service deals connections round, not calls."""
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {API_TOKEN}"}, timeout=PATIENCE)

    def is_ready(self, _: int = 0) -> None:
        with self.client() as http:
            answer = http.get("/readyz")
        assert answer.status_code == 200, answer.text


@pytest.fixture
def release(control_plane: Plane, postgres_url: str, namespace: str) -> Iterator[Release]:
    helm = find_helm()
    if helm is None:
        pytest.skip("needs helm, or Go to build it")
    with fresh_database(postgres_url) as database, running_kubelet(control_plane, {}, second=1.0) as kubelet:
        for name in ("left", "right"):
            kubelet.add_node(name, cpu="8", memory="32Gi")
        internal = kubelet.expose(namespace, f"{RELEASE}-internal")

        def worker(launch: Launch) -> Program:
            # There is no name service: the Service of the workers' URL is a port of this machine.
            assert launch.environment["TIDEFILL_SERVICE_URL"] == f"http://{RELEASE}-internal:8700"
            program = tidefill_worker(launch)
            there = {"TIDEFILL_SERVICE_URL": f"http://127.0.0.1:{internal}", "TIDEFILL_SPARK_MASTER": "local[2]"}
            return Program(program.command, {**program.environment, **there})

        kubelet.images.update({"tidefill/service": tidefill_service, "tidefill/worker": worker})
        secret = {
            "database-url": database,
            "state-store-url": database,
            "api-token": API_TOKEN,
            "worker-token": WORKER_TOKEN,
        }
        control_plane.api.post(at("secrets", namespace), {"metadata": {"name": "tidefill"}, "stringData": secret})
        url = f"http://127.0.0.1:{kubelet.expose(namespace, RELEASE)}"
        yield Release(helm, control_plane, kubelet, namespace, database, url)


def test_the_chart_is_installed_upgraded_rolled_back_and_removed(release: Release) -> None:
    chart = str(CHART)
    release.succeeds("install", RELEASE, chart, "--timeout", "4m")
    release.is_ready()
    assert len(release.pods("service")) == 2
    assert all(condition(pod, "Ready")["status"] == "True" for pod in release.pods("service"))
    release.ask("CREATE TABLE t (v int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    release.ask("CREATE MATERIALIZED VIEW m AS SELECT v, v + 1 AS w FROM t")
    assert release.ask("SELECT w FROM m") == [[2]]

    # The Service has a ready pod at every moment of a rolling update.
    old = {pod["metadata"]["uid"] for pod in release.pods("service")}
    with Repeating(release.is_ready) as asked:
        newer = {"service": {"image": {"repository": "tidefill/service", "tag": "0.1.1"}}}
        release.succeeds("upgrade", RELEASE, chart, "--timeout", "4m", values=newer)
    assert asked.turns > 0
    assert release.images() == {"tidefill/service:0.1.1"}
    assert not old & {pod["metadata"]["uid"] for pod in release.pods("service")}

    # The hook cannot run an image that is not there, and the services are not touched.
    absent = {"service": {"image": {"repository": "nowhere/service"}}}
    refused = release.run("upgrade", RELEASE, chart, "--timeout", "5s", values=absent)
    assert refused.returncode != 0
    assert "pre-upgrade hooks failed" in refused.stderr
    release.is_ready()
    assert release.images() == {"tidefill/service:0.1.1"}

    release.succeeds("rollback", RELEASE, "1", "--timeout", "4m")
    assert release.images() == {"tidefill/service:0.1.0"}
    release.ask("INSERT INTO t VALUES (2)")
    assert sorted(release.ask("SELECT w FROM m")) == [[2], [3]]

    release.succeeds("uninstall", RELEASE, "--timeout", "4m")
    # The pods are collected after their owners, which is all that helm waits for.
    left = at("pods", release.namespace)
    of_release = "app.kubernetes.io/component in (service,worker)"
    until(lambda: not release.plane.api.items(left, labelSelector=of_release), what="no pod is left")
    with psycopg.connect(release.database) as connection:
        assert connection.execute("select count(*) from tidefill.relation where name = 'm'").fetchone() == (1,)
