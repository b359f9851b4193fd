"""A job with which workers end is failed, and not another that was computed beside it (I13)."""

from datetime import UTC, datetime, timedelta

import pytest

from service.domain.setbacks import APART, LOSSES_MAX, WINDOW, Suspects
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
OWN = GraphId(7)
JOB, OTHER = JobId(1), JobId(2)


@pytest.mark.parametrize("graph", [DATABASE_GRAPH, OWN])
def test_a_job_with_which_workers_end_again_and_again_is_failed(graph: GraphId) -> None:
    suspects = Suspects()
    told = [suspects.suspect(graph, JOB, caller="one", now=NOW + n * SECOND) for n in range(LOSSES_MAX)]
    assert told == [False, False, True]
    # The count begins anew.
    assert not suspects.suspect(graph, JOB, caller="one", now=NOW + WINDOW + 9 * SECOND)


def test_losses_long_ago_do_not_count() -> None:
    suspects = Suspects()
    assert not any(suspects.suspect(OWN, JOB, caller="one", now=NOW + n * (WINDOW / 2)) for n in range(9))
    assert len(suspects.losses[OWN, JOB]) == 2


def test_a_job_beside_one_of_a_graph_of_its_own_is_spared() -> None:
    suspects = Suspects()
    told: list[tuple[bool, bool]] = []
    for n in range(LOSSES_MAX):
        beside = suspects.suspect(DATABASE_GRAPH, OTHER, caller="two", now=NOW + n * SECOND)
        told.append((beside, suspects.suspect(OWN, JOB, caller="one", now=NOW + n * SECOND)))
    assert told == [(False, False), (False, False), (False, True)]
    # Alone it is failed as well, if workers still end with it.
    assert suspects.suspect(DATABASE_GRAPH, OTHER, caller="two", now=NOW + 9 * SECOND)


def test_i13_the_next_job_of_the_same_caller_fails_at_its_first_loss_for_some_time() -> None:
    suspects = Suspects()
    for n in range(LOSSES_MAX):
        suspects.suspect(DATABASE_GRAPH, JOB, caller="one", now=NOW + n * SECOND)
    assert not suspects.suspect(DATABASE_GRAPH, OTHER, caller="two", now=NOW + 9 * SECOND)
    assert suspects.suspect(DATABASE_GRAPH, JobId(11), caller="one", now=NOW + 9 * SECOND)
    assert not suspects.suspect(DATABASE_GRAPH, JobId(12), caller="one", now=NOW + 10 * SECOND + WINDOW)


def test_i13_jobs_of_callers_that_took_all_memory_together_are_computed_one_by_one_for_an_hour() -> None:
    suspects = Suspects()
    suspects.crowded(["two", "one", "two"], now=NOW)
    suspects.crowded(["three"], now=NOW + SECOND)
    assert suspects.apart(now=NOW + APART - SECOND) == ["one", "three", "two"]
    assert suspects.apart(now=NOW + APART) == ["three"]
