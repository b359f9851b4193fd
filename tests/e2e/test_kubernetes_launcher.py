"""Workers as pods of a real control plane, with the rights and the templates of the chart: a job's status says what is
wrong with them, whatever it is.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane.api import at
from tests.support.control_plane.plane import Plane
from tests.support.tides import LAUNCHER, TEMPLATES, Tides, running_tides
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.own_service, pytest.mark.control_plane]


@pytest.fixture
def tides(control_plane: Plane, postgres_url: str, namespace: str, tmp_path: Path) -> Iterator[Tides]:
    values = {"sparkMaster": "local[2]", "profiles": {"big": {"podAnnotations": {"example.com/size": "big"}}}}
    with running_tides(control_plane, postgres_url, namespace, tmp_path, values, image="nowhere/worker") as made:
        yield made


def build_in_group(tides: Tides, view: str) -> None:
    """Create a view whose own worker has the profile `big`, and look at the worker's pod."""
    service, job = tides.service, "tidefill.dev/job"
    options = "cloud.serverless_backfill_enabled = true, resource_group = {}"
    text = f"CREATE MATERIALIZED VIEW {view} WITH ({options}) AS SELECT v FROM t"
    assert "The profiles of workers are: big, database, serverless" in str(service.refused(text.format("huge")))
    created = service.later(text.format("big"))
    pod = until(
        lambda: next((one for one in tides.pods().values() if job in one["metadata"]["labels"]), None), what=tides.said
    )
    created.result()
    assert pod["metadata"]["labels"][job] == str(service.job(view))
    assert pod["metadata"]["labels"]["tidefill.dev/resource-group"] == "big"
    assert pod["metadata"]["annotations"] == {"example.com/size": "big"}
    assert service.detail(service.job(view))["job"]["resource_group"] == "big"


def test_workers_are_pods_and_a_job_says_what_is_wrong_with_them(tides: Tides) -> None:
    service, plane, namespace = tides.service, tides.plane, tides.namespace
    created = service.later("CREATE TABLE t (v int PRIMARY KEY)")
    ((table,),) = until(lambda: service.stored("select id from tidefill.job") or None, what=service.log_tail)
    tides.until_why(table, "the worker is held up", "nowhere/worker")
    assert [facts["cause"] for facts in tides.events("worker.held_up")] == ["ImagePullBackOff"]

    plane.api.patch(at("configmaps", namespace, TEMPLATES), {"data": tides.manifest("ConfigMap", TEMPLATES)["data"]})
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

    rules = tides.manifest("Role", LAUNCHER)["rules"]
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
    build_in_group(tides, "n")
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
