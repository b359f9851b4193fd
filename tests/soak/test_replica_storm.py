"""Three services on one database behind faulty proxies: leaders are killed, frozen and cut off while a storm of
statements goes on. In the end every kept view is its query, every answered statement has run once, no epoch was
committed under two terms, and of all else nothing is left (I1, I2, I3, I4, I6, I7, I9).
"""

import sys

import pytest

from tests.support.postgres import fresh_database
from tests.support.service import data_directory
from tests.support.soaking import first_seed, seconds
from tests.support.storm import Storm
from tests.support.storm_replicas import Disturbance, replicas
from tests.support.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.e2e]


def test_replicas_lose_nothing_behind_a_faulty_network(postgres_url: str) -> None:
    with (
        fresh_database(postgres_url) as url,
        data_directory() as directory,
        replicas(url, directory, 3) as running,
    ):
        running.watch()
        storm = Storm(
            running.front,
            first_seed(),
            lambda random, over: Disturbance(running.front, random, over, replicas=running.replicas, way=running.way),
        )
        storm.prepare()
        try:
            storm.rage(seconds())
            until(lambda: running.front.http.get("/readyz").status_code == 200, what="the services are ready")
            storm.settle()
        finally:
            sys.stdout.write(storm.figures())
        storm.check()
        sys.stdout.write(f"terms: {running.assert_one_term_per_epoch()}\n")
