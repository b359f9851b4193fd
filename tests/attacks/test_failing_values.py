"""A value that fails a view fails that view alone, and at once (I13)."""

import pytest

from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

DIGEST = "SELECT md5(k) AS d, min(k) AS k, count(*) AS n FROM t GROUP BY md5(k)"


def test_n7b_a_text_that_is_too_long_for_a_key_fails_its_views_at_once_with_the_way_out(service: Service) -> None:
    service.run("CREATE TABLE t (id int PRIMARY KEY, k text)")
    service.run("INSERT INTO t SELECT g, 'k' || g % 3 FROM generate_series(1, 100) g")
    queries = ("SELECT k, count(*) AS n FROM t GROUP BY k", "SELECT DISTINCT k FROM t")
    for number, query in enumerate(queries):
        service.run(f"CREATE MATERIALIZED VIEW broken{number} AS {query}")
    service.run(f"CREATE MATERIALIZED VIEW digest AS {DIGEST}")
    jobs = [service.job(f"broken{number}") for number in range(len(queries))]
    generation = service.graph()["generation"]
    service.run("INSERT INTO t SELECT 101, string_agg(md5(g::text), '') FROM generate_series(1, 300) g")
    until(
        lambda: {service.state(job) for job in jobs} == {"Failed"}, what=lambda: [service.detail(job) for job in jobs]
    )
    for job in jobs:
        assert "use a digest such as md5(x)" in service.detail(job)["job"]["error"]
    assert service.assert_equal("digest", DIGEST) == 4
    assert service.graph()["generation"] == generation + 1
    refused = str(service.refused(f"CREATE MATERIALIZED VIEW late AS {queries[0]}"))
    assert "use a digest such as md5(x)" in refused
    assert service.graph()["generation"] == generation + 1
