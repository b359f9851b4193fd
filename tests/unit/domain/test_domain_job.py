"""Every pair of a state and an event is either in the table or refused."""

from itertools import product

import pytest

from service.domain.job import (
    CREATING,
    HOLDS_PERMIT,
    IN_GRAPH,
    TERMINAL,
    TRANSITIONS,
    IllegalTransition,
    JobEvent,
    JobState,
    after,
)

ALLOWED = {
    "Initial": {
        "queued": "Queued",
        "started": "Creating",
        "cancel_asked": "Cancelled",
        "failed": "Failed",
    },
    "Queued": {"started": "Creating", "cancel_asked": "Cancelled", "failed": "Failed"},
    "Creating": {"finished": "Created", "cancel_asked": "Cancelling", "failed": "Failed"},
    "Created": {"failed": "Failed", "drop_asked": "Dropping"},
    "Cancelling": {"stopped": "Cancelled"},
    "Cancelled": {},
    "Failed": {"drop_asked": "Dropping"},
    "Dropping": {"stopped": "Dropped"},
    "Dropped": {},
}


@pytest.mark.parametrize(("state", "event"), list(product(JobState, JobEvent)))
def test_every_pair(state: JobState, event: JobEvent) -> None:
    follows = ALLOWED[state].get(event)
    if follows is not None:
        assert after(state, event) is JobState(follows)
        return
    said = {JobEvent.CANCEL_ASKED: "cancelled", JobEvent.DROP_ASKED: "dropped"}.get(event, event)
    with pytest.raises(IllegalTransition, match=f"a job that is {state} cannot be {said}") as refused:
        after(state, event)
    assert (refused.value.state, refused.value.event) == (state, event)


def test_every_state_is_reached_and_every_event_used() -> None:
    reached = {JobState.INITIAL}
    while new := {to for (origin, _), to in TRANSITIONS.items() if origin in reached} - reached:
        reached |= new
    assert reached == set(JobState)
    assert {event for _, event in TRANSITIONS} == set(JobEvent)


def test_terminal_states_are_those_without_exits() -> None:
    assert {state for state in JobState if not any(origin is state for origin, _ in TRANSITIONS)} == TERMINAL


def test_created_only_by_a_finish() -> None:
    """I6: no other event makes a job readable, and only while it was creating."""
    assert [pair for pair, to in TRANSITIONS.items() if to is JobState.CREATED] == [
        (JobState.CREATING, JobEvent.FINISHED)
    ]


def test_what_a_stop_ends_is_in_the_graph() -> None:
    """Actors run in exactly the states that are left by a stop, a finish, a failure or a wish to stop."""
    assert {origin for origin, event in TRANSITIONS if event is JobEvent.STOPPED} <= IN_GRAPH
    assert HOLDS_PERMIT <= IN_GRAPH
    assert not TERMINAL & (IN_GRAPH | CREATING)
