"""The chart in a real cluster: installed, upgraded, rolled back and removed, with real services and a real worker."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.control_plane.api import at, condition
from tests.support.control_plane.plane import Plane
from tests.support.helm_release import CHART, RELEASE, Release, two_nodes
from tests.support.waiting import Repeating, until

pytestmark = [pytest.mark.e2e, pytest.mark.own_service, pytest.mark.control_plane]


@pytest.fixture
def release(control_plane: Plane, postgres_url: str, namespace: str) -> Iterator[Release]:
    with two_nodes(control_plane, postgres_url, namespace) as made:
        yield made


def ask(release: Release, *statements: str) -> list[list[Any]]:
    """Run statements; return the rows of the last."""
    rows: list[list[Any]] = []
    for text in statements:
        with release.client() as http:
            answer = http.post("/v1/sql", json={"sql": text})
            assert answer.status_code == 200, (answer.text, release.logs())
            rows = answer.json()["rows"]
    return rows


def is_ready(release: Release) -> None:
    with release.client() as http:
        answer = http.get("/readyz")
    assert answer.status_code == 200, answer.text


def test_the_chart_is_installed_upgraded_rolled_back_and_removed(release: Release) -> None:
    chart = str(CHART)
    release.succeeds("install", RELEASE, chart, "--timeout", "4m")
    is_ready(release)
    assert len(release.pods("service")) == 2
    assert all(condition(pod, "Ready")["status"] == "True" for pod in release.pods("service"))
    ask(release, "CREATE TABLE t (v int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    ask(release, "CREATE MATERIALIZED VIEW m AS SELECT v, v + 1 AS w FROM t")
    assert ask(release, "SELECT w FROM m") == [[2]]

    # The Service has a ready pod at every moment of a rolling update.
    old = {pod["metadata"]["uid"] for pod in release.pods("service")}
    with Repeating(lambda _: is_ready(release)) as asked:
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
    is_ready(release)
    assert release.images() == {"tidefill/service:0.1.1"}

    release.succeeds("rollback", RELEASE, "1", "--timeout", "4m")
    assert release.images() == {"tidefill/service:0.1.0"}
    ask(release, "INSERT INTO t VALUES (2)")
    assert sorted(ask(release, "SELECT w FROM m")) == [[2], [3]]

    release.succeeds("uninstall", RELEASE, "--timeout", "4m")
    # The pods are collected after their owners, which is all that helm waits for.
    left = at("pods", release.namespace)
    of_release = "app.kubernetes.io/component in (service,worker)"
    until(lambda: not release.plane.api.items(left, labelSelector=of_release), what="no pod is left")
    with psycopg.connect(release.database) as connection:
        assert connection.execute("select count(*) from tidefill.relation where name = 'm'").fetchone() == (1,)
