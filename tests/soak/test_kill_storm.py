"""Worker, service and Postgres are killed every few seconds for as long as the soak lasts, while a storm of statements
goes on. In the end every view that was kept is its query, every statement has run once, and of all else nothing is left
(I1, I2, I3, I4, I6, I9).
"""

import sys
from pathlib import Path

import pytest

from tests.support.leftovers import assert_one_worker, temporary_files
from tests.support.service import Service
from tests.support.soaking import first_seed, seconds
from tests.support.storm import Storm
from tests.support.storm_kills import Killer

pytestmark = [pytest.mark.soak, pytest.mark.e2e]


def test_what_is_killed_comes_back_and_nothing_is_lost_twice_or_left(service: Service) -> None:
    storm = Storm(service, first_seed(), lambda random, over: Killer(service, random, over))
    storm.prepare()
    try:
        storm.rage(seconds())
        service.wait_ready()
        storm.settle()
    finally:
        sys.stdout.write(storm.figures())
    storm.check()
    assert_one_worker(service)
    service.stop()
    assert temporary_files(Path(service.environment["TMPDIR"])) == []
