"""Worker, service and Postgres are killed at random under live writes, seed after seed; in the end all is right
(I1, I3, I6).
"""

from random import Random

import pytest

from tests.e2e.test_kills import ALL_KILLS
from tests.support.service import Service
from tests.support.soaking import seeds
from tests.support.workload import STRATEGIES, Workload, until_reading

pytestmark = [pytest.mark.soak, pytest.mark.e2e]


def test_nothing_is_lost_nor_twice_however_often_anything_is_killed(service: Service) -> None:
    for seed in seeds():
        random = Random(seed)
        service.reset()
        service.run(f"ALTER SYSTEM SET barrier_interval_ms = {random.choice((250, 500, 1000))}")
        work = Workload(service, STRATEGIES)
        work.prepare()
        with work.running():
            rows = until_reading(work, 0)
            for _ in range(random.randint(1, 5)):
                rows = service.until_rows(work.job, rows + random.randrange(600))
                kill, generation = random.choice(ALL_KILLS), service.graph()["generation"]
                kill(service)
                service.wait_ready()
                service.until_recovered(generation)
        work.finish()
