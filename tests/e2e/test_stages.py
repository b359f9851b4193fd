"""Views with joins, aggregates, subqueries and top-n over HTTP: all of TPC-H and of Nexmark, while tables change and
processes die.

Half of the views are created before their tables have rows, half afterwards, by Snapshot and by Arrangement. After some
epochs each view equals its query (I1, I12), whatever was killed (I3). A cancelled view leaves nothing behind (I9).
`STAGE_ENGINE=spark` has Spark read the history of every view that it can compute.
"""

import os
from collections.abc import Sequence

import pytest

from tests.support.followed import KILLS, Benchmark, Followed, Kill, followed_through_kills, nexmark_of, tpch_at
from tests.support.service import Service
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

SCALE = float(os.environ.get("TPCH_SCALE", "0.0005"))
BIDS = int(os.environ.get("NEXMARK_BIDS", "400"))
ENGINE = os.environ.get("STAGE_ENGINE", "auto")


@pytest.mark.parametrize(
    ("queries", "kills"),
    [
        pytest.param(tpch_at(SCALE), KILLS, id="tpch", marks=pytest.mark.soak),
        pytest.param(nexmark_of(BIDS), KILLS, id="nexmark", marks=pytest.mark.soak),
        pytest.param(nexmark_of(BIDS, share=8), KILLS[-1:], id="nexmark-eighth"),
    ],
)
def test_i1_i3_i12_all_queries_are_followed_through_kills(
    killable: Service, queries: Benchmark, kills: Sequence[Kill]
) -> None:
    followed = Followed(killable, queries, ENGINE)
    followed.prepare()
    followed_through_kills(followed, kills)


def test_i9_a_cancelled_view_of_stages_leaves_nothing(service: Service) -> None:
    service.run("CREATE TABLE facts (id bigint PRIMARY KEY, k bigint)")
    service.run("CREATE TABLE dimensions (id bigint PRIMARY KEY, k bigint)")
    for table in ("facts", "dimensions"):
        service.run(f"INSERT INTO {table} SELECT g, g % 10 FROM generate_series(1, 500) g")

    def stored() -> list[tuple[object, ...]]:
        return service.stored("select relname from pg_class where relnamespace = 'state'::regnamespace order by 1")

    before = stored()
    query = "SELECT d.k, max(f.id) AS most FROM facts f JOIN dimensions d ON d.k = f.k GROUP BY d.k"
    service.run(f"CREATE MATERIALIZED VIEW slow WITH (backfill_rate_limit = 1) AS {query}", background_ddl="true")
    service.until_rows(service.job("slow"), 1)
    assert len(stored()) > len(before)
    service.post(f"/v1/jobs/{service.job('slow')}/cancel")
    until(lambda: stored() == before, what=lambda: f"nothing is left of {set(stored()) - set(before)}")
    for table in ("facts", "dimensions"):
        service.run(f"DROP TABLE {table}")
