"""All queries of TPC-H and Nexmark as views that both engines build, while keys move and processes die, until the time
is over.

`TPCH_SCALE` is 0.01 by default, with 60,000 line items. Each round builds all views anew: half of them before the
changes begin, half while they go on.
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


@pytest.mark.parametrize("engine", ["store", "spark", "auto"])
@pytest.mark.parametrize("benchmark", ["tpch", "nexmark"])
def test_i1_i3_i12_a_benchmark_is_followed_on_each_engine(service: Service, benchmark: str, engine: str) -> None:
    followed = Followed(service, tpch_at(SCALE) if benchmark == "tpch" else nexmark_of(BIDS), engine)
    early, late = followed.benchmark.early, followed.benchmark.late
    followed.prepare()
    followed.fill()
    for seed in seeds():
        began = time.monotonic()  # noqa: TID251 - how long a round takes is reported
        followed.create(early)
        followed.until_created(early)
        with followed.changing(seed) as changes:
            followed.create(late)
            followed.kill_each(changes)
            followed.until_created(late)
            built = time.monotonic()  # noqa: TID251 - as above
            for _ in range(COMPARISONS):
                followed.until_changed(changes, 10)
                followed.assert_equal([*early, *late])
        followed.assert_equal([*early, *late])
        ended = time.monotonic()  # noqa: TID251 - as above
        sys.stdout.write(f"{engine}: built in {built - began:.0f} s, compared in {ended - built:.0f} s\n")
        followed.assert_most_have_rows()
        followed.drop([*late, *early])
    sys.stdout.writelines(f"{engine}: {name} is the store's: {why}\n" for name, why in followed.refused.items())
