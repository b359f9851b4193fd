"""All queries of TPC-H and Nexmark as views that both engines build, while keys move and processes die, until the time
is over.

`TPCH_SCALE` is 0.01 by default, with 60,000 line items. Each round builds all views anew: half of them before the
changes begin, half while they go on. Those of Spark, each of which has a graph of its own, are built a few at a time.
"""

import os
import sys
import time

import pytest

from tests.support.followed import Followed, nexmark_of, tpch_at
from tests.support.service import Service
from tests.support.soaking import seeds

pytestmark = pytest.mark.soak

SCALE = float(os.environ.get("TPCH_SCALE", "0.01"))
BIDS = 5_000
COMPARISONS = 3
OF_SPARK = 6
"""So many views of Spark at once."""


@pytest.mark.parametrize("engine", ["store", "spark", "auto"])
@pytest.mark.parametrize("benchmark", ["tpch", "nexmark"])
def test_i1_i3_i12_a_benchmark_is_followed_on_each_engine(service: Service, benchmark: str, engine: str) -> None:
    whole = tpch_at(SCALE) if benchmark == "tpch" else nexmark_of(BIDS)
    followed = Followed(service, whole, engine)
    followed.prepare()
    followed.fill()
    for seed in seeds():
        full = 0
        for followed.benchmark in whole.parts(OF_SPARK if engine == "spark" else len(whole.queries)):
            _follow(followed, seed)
            full += followed.full
            followed.drop(list(followed.benchmark.queries))
        # A view without rows shows little.
        assert full > len(whole.queries) // 2
    sys.stdout.writelines(f"{engine}: {name} is the store's: {why}\n" for name, why in followed.refused.items())


def _follow(followed: Followed, seed: int) -> None:
    """Build some views, kill, and compare them every few epochs."""
    views = followed.benchmark
    began = time.monotonic()  # noqa: TID251 - how long a round takes is reported
    followed.create(views.early)
    followed.until_created(views.early)
    with followed.changing(seed) as changes:
        followed.create(views.late)
        followed.kill_each(changes)
        followed.until_created(views.late)
    built = time.monotonic()  # noqa: TID251 - as above
    for number in range(1, COMPARISONS + 1):
        # The store compares a view with a graph of its own at rest.
        with followed.changing(1000 * seed + number) as changes:
            followed.until_changed(changes, 10)
        followed.assert_equal(list(views.queries))
    ended = time.monotonic()  # noqa: TID251 - as above
    told = f"{len(views.queries)} views built in {built - began:.0f} s, compared in {ended - built:.0f} s"
    sys.stdout.write(f"{followed.engine}: {told}, {followed.done} statements\n")
    sys.stdout.flush()
