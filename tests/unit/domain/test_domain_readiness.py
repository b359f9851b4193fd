"""Readiness says when no epoch is published (C13)."""

from datetime import UTC, datetime, timedelta

import pytest

from service.domain.epochs import following
from service.domain.parameters import SystemParameters
from service.domain.readiness import age_max, of_barriers
from service.protocol.epoch import NEVER

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("interval_ms", "frequency", "seconds"), [(1000, 1, 30), (50, 1, 30), (10_000, 1, 50), (10_000, 3, 150)]
)
def test_c13_the_bound_is_several_checkpoints_and_never_below_30_s(
    interval_ms: int, frequency: int, seconds: int
) -> None:
    parameters = SystemParameters(barrier_interval_ms=interval_ms, checkpoint_frequency=frequency)
    assert age_max(parameters) == timedelta(seconds=seconds)


def test_c13_readiness_fails_with_the_age_of_the_published_epoch() -> None:
    epoch = following(NEVER, now=NOW)
    parameters = SystemParameters()
    assert of_barriers(epoch, parameters, now=NOW + timedelta(seconds=30)) == "ok"
    said = of_barriers(epoch, parameters, now=NOW + timedelta(seconds=95))
    assert said == "no epoch was published for 95 s, more than 30 s"
    assert of_barriers(epoch, parameters, now=NOW - timedelta(seconds=95)) == "ok"
    assert of_barriers(NEVER, parameters, now=NOW) == "no epoch was published yet"
