"""Why a job waits: one reason for each state in which it does, since when, and until when."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from service.domain.graph import FailedIndex, GraphPolicy, GraphStatus, GraphView, InFlight, OwnWorker, Pace
from service.domain.job import Job, JobState
from service.domain.launching import End, Hold, Launch
from service.domain.progress import ScanProgress
from service.domain.waiting import Around, Reason, Waiting, why
from service.protocol.barrier import BarrierKind
from service.protocol.ids import Epoch, FragmentId, Generation, GraphId, JobId, RelationId, WorkerId
from service.protocol.relation import RelationKind

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
BEGAN = NOW - 60 * SECOND
W = WorkerId("w")
JOB = Job(
    id=JobId(1),
    relation=RelationId(1),
    name="m",
    kind=RelationKind.MATERIALIZED_VIEW,
    statement="",
    state=JobState.CREATING,
    background=True,
    initialized_at=NOW - 90 * SECOND,
    state_since=BEGAN,
)
SCAN = ScanProgress(FragmentId(1), "t", rows=5, total=10, at=NOW)
RUNNING = GraphView(
    graph=GraphId(1),
    status=GraphStatus.RUNNING,
    generation=Generation(1),
    committed=Epoch(5),
    published=Epoch(5),
    newest=Epoch(5),
    worker=W,
    alive=frozenset({W}),
)
LATE = InFlight(Epoch(9), BarrierKind.CHECKPOINT, NOW - 6 * SECOND)
WELL = Around(graph=RUNNING, pace=Pace(), last_error="worker lost", paused=False, paused_since=None)


def around(**of_graph: object) -> Around:
    return replace(WELL, graph=replace(RUNNING, **of_graph))


@pytest.mark.parametrize(
    ("job", "facts", "waiting"),
    [
        (
            replace(JOB, state=JobState.INITIAL),
            WELL,
            Waiting(Reason.START, "the leader has yet to start it", JOB.initialized_at),
        ),
        *(
            (replace(JOB, state=state, preparing="an index"), WELL, Waiting(Reason.INDEX, "an index", BEGAN))
            for state in (JobState.INITIAL, JobState.QUEUED)
        ),
        (
            replace(JOB, state=JobState.QUEUED),
            WELL,
            Waiting(Reason.QUEUE, "queued at place 3: max_concurrent_creating_streaming_jobs is reached", BEGAN),
        ),
        (
            replace(JOB, state=JobState.QUEUED, serverless=True),
            WELL,
            Waiting(
                Reason.QUEUE,
                "queued at place 3: max_concurrent_creating_streaming_jobs or serverless_workers_max is reached",
                BEGAN,
            ),
        ),
        (
            replace(JOB, state=JobState.CANCELLING),
            WELL,
            Waiting(Reason.STOP, "a barrier has yet to stop its actors", BEGAN),
        ),
        (
            JOB,
            around(status=GraphStatus.RECOVERING, recovering_since=NOW - SECOND),
            Waiting(Reason.RECOVERY, "repeating the work since the last checkpoint: worker lost", NOW - SECOND),
        ),
        (
            JOB,
            around(status=GraphStatus.WAITING, recovering_since=NOW, attempts=9),
            Waiting(Reason.RECOVERY, "pausing after 9 starts: worker lost", NOW, NOW + 5 * SECOND),
        ),
        (
            JOB,
            around(status=GraphStatus.WAITING, recovering_since=BEGAN, alive=frozenset[WorkerId]()),
            Waiting(Reason.WORKER, "no worker is alive", BEGAN),
        ),
        (
            JOB,
            around(in_flight=LATE, last_injected_at=LATE.injected_at),
            Waiting(Reason.BARRIER, "the worker still computes epoch 9", NOW - 6 * SECOND, NOW + 294 * SECOND),
        ),
        (
            JOB,
            replace(WELL, paused=True, paused_since=NOW - SECOND),
            Waiting(Reason.PAUSE, "every backfill is paused", NOW - SECOND),
        ),
        (JOB, WELL, None),
        (replace(JOB, state=JobState.CREATED), around(status=GraphStatus.RECOVERING), None),
    ],
)  # fmt: skip
def test_every_state_in_which_a_job_waits_has_a_reason(job: Job, facts: Around, waiting: Waiting | None) -> None:
    assert why(job, [SCAN], facts, now=NOW, place=3) == waiting


OWN = replace(WELL, graph=replace(RUNNING, status=GraphStatus.WAITING, worker=None, alive=frozenset[WorkerId]()))


@pytest.mark.parametrize(
    ("own", "text", "until"),
    [
        (OwnWorker(), "its own worker is being started", None),
        (OwnWorker(0, "signal 9", NOW), "its own worker is being started anew: signal 9", NOW),
        (OwnWorker(1, "exit code 3", NOW + SECOND), "its own worker failed once: exit code 3", NOW + SECOND),
        (OwnWorker(4, "exit code 3", NOW), "its own worker failed 4 times in a row: exit code 3", NOW),
    ],
)
def test_a_job_waits_for_a_worker_of_its_own(own: OwnWorker, text: str, until: datetime | None) -> None:
    facts = replace(OWN, graph=replace(OWN.graph, policy=GraphPolicy(own_worker=own)))
    assert why(JOB, [SCAN], facts, now=NOW) == Waiting(Reason.WORKER, text, BEGAN, until)
    alone = why(JOB, [SCAN], replace(facts, own_workers=False), now=NOW)
    assert alone is not None
    assert "TIDEFILL_LAUNCHER" in alone.text, "nobody will start it"


LAUNCH = Launch(W, GraphId(1), 1, NOW)


@pytest.mark.parametrize(
    ("launch", "text", "since", "until"),
    [
        (None, "no worker is alive", BEGAN, None),
        (LAUNCH, "the worker is being started", BEGAN, None),
        (
            replace(LAUNCH, held=Hold("quota", "exceeded quota", NOW)),
            "the worker is held up: exceeded quota",
            NOW,
            None,
        ),
        (
            replace(LAUNCH, end=End(NOW, "OOMKilled", 2, NOW + SECOND)),
            "the worker failed 2 times in a row: OOMKilled",
            BEGAN,
            NOW + SECOND,
        ),
        (replace(LAUNCH, end=End(NOW, "Evicted", 0, NOW)), "the worker is being started anew: Evicted", BEGAN, NOW),
    ],
)
def test_a_job_waits_for_a_worker_of_a_cluster(
    launch: Launch | None, text: str, since: datetime, until: datetime | None
) -> None:
    assert why(JOB, [SCAN], replace(OWN, launch=launch), now=NOW) == Waiting(Reason.WORKER, text, since, until)
    own = replace(OWN, launch=launch, graph=replace(OWN.graph, policy=GraphPolicy(own_worker=OwnWorker())))
    waiting = why(JOB, [SCAN], own, now=NOW)
    assert waiting is not None
    assert waiting.text == (
        "its own worker is being started" if launch is None else text.replace("the ", "its own ", 1)
    )


@pytest.mark.parametrize(
    ("failed", "waiting"),
    [
        (None, Waiting(Reason.INDEX, "the index of its table is being built", BEGAN)),
        (FailedIndex(1, "no space", NOW), Waiting(Reason.INDEX, "the index of its table is being built", BEGAN)),
        (
            FailedIndex(1, "no space", NOW + SECOND),
            Waiting(Reason.INDEX, "the index of its table could not be built: no space", BEGAN, NOW + SECOND),
        ),
    ],
)
def test_a_job_waits_for_the_index_of_its_table(failed: FailedIndex | None, waiting: Waiting) -> None:
    facts = around(policy=GraphPolicy(unindexed=True, index_failed=failed), last_injected_at=BEGAN)
    assert why(JOB, [SCAN], facts, now=NOW) == waiting


def test_a_worker_that_the_graph_has_lost_is_not_alive() -> None:
    waiting = why(JOB, [SCAN], around(alive=frozenset({WorkerId("another")})), now=NOW)
    assert waiting is not None
    assert waiting.reason is Reason.WORKER


def test_a_barrier_has_its_time() -> None:
    soon = NOW - 5 * SECOND
    assert why(JOB, [SCAN], around(in_flight=replace(LATE, injected_at=soon), last_injected_at=soon), now=NOW) is None
    assert why(JOB, [SCAN], around(last_injected_at=soon), now=NOW) is None


@pytest.mark.parametrize("in_flight", [replace(LATE, collected=True), None])
def test_nobody_makes_or_commits_barriers(in_flight: InFlight | None) -> None:
    unled = replace(around(in_flight=in_flight, last_injected_at=LATE.injected_at), led=False)
    waiting = why(JOB, [SCAN], unled, now=NOW)
    assert waiting == Waiting(Reason.LEADER, "no service leads: no barrier was made or committed", LATE.injected_at)


@pytest.mark.parametrize(
    ("in_flight", "said"),
    [
        (replace(LATE, collected=True), "barrier 9 is collected and not yet committed"),
        (None, "the next barrier is overdue"),
    ],
)
def test_h6_a_leader_that_is_late_leads(in_flight: InFlight | None, said: str) -> None:
    waiting = why(JOB, [SCAN], around(in_flight=in_flight, last_injected_at=LATE.injected_at), now=NOW)
    assert waiting == Waiting(Reason.SERVICE, f"the service is behind: {said}", LATE.injected_at)


def test_a_long_interval_is_waited_for_twice() -> None:
    late = around(in_flight=LATE, last_injected_at=LATE.injected_at)
    slow = replace(late, pace=Pace(interval=4 * SECOND))
    assert why(JOB, [SCAN], slow, now=NOW) is None
    assert why(JOB, [SCAN], slow, now=NOW + 3 * SECOND) is not None


def test_what_holds_up_the_job_itself() -> None:
    stopped = replace(SCAN, rate_limit=0, limited_since=NOW - SECOND)
    begun_stopped = replace(SCAN, rate_limit=0)
    behind = replace(SCAN, upstream="u", waiting=True, awaits=("t", "s"))
    due = replace(SCAN, upstream="v", waiting=True)
    done = replace(SCAN, finished=True)

    def reasons(*scans: ScanProgress) -> tuple[Reason, str, datetime | None] | None:
        waiting = why(JOB, scans, WELL, now=NOW)
        return None if waiting is None else (waiting.reason, waiting.text, waiting.since)

    assert reasons(replace(SCAN, at=None)) == (
        Reason.FIRST_BARRIER,
        "its first barrier has yet to be collected",
        BEGAN,
    )
    assert reasons(stopped, done) == (Reason.LIMIT, "its history is paused: backfill_rate_limit is 0", NOW - SECOND)
    assert reasons(begun_stopped) == (Reason.LIMIT, "its history is paused: backfill_rate_limit is 0", BEGAN)
    assert reasons(behind, due, done) == (Reason.ORDER, "u after t, s; v after the next barrier", BEGAN)
    assert reasons(stopped, behind) == (Reason.LIMIT, "its history is paused: backfill_rate_limit is 0", NOW - SECOND)
    assert reasons(SCAN, stopped, behind) is None, "something moves"
    assert reasons(done) is None
    assert reasons() is None


@pytest.mark.parametrize("status", [GraphStatus.RECOVERING, GraphStatus.WAITING])
def test_u7_a_graph_that_begins_is_not_said_to_recover(status: GraphStatus) -> None:
    begins = replace(around(status=status, recovering_since=BEGAN), last_error=None)
    waiting = why(JOB, [SCAN], begins, now=NOW)
    assert waiting is not None
    assert (waiting.reason, waiting.text) == (Reason.START, "its barriers are about to begin")


def test_u7_a_pause_names_who_paused() -> None:
    everything = why(JOB, [SCAN], replace(WELL, paused=True, paused_by="token 7 (ci)"), now=NOW)
    earlier = replace(SCAN, rate_limit=0, limited_since=NOW - SECOND, limited_by="http 127.0.0.1")
    later = replace(earlier, limited_since=NOW, limited_by="token 7 (ci)")
    job = why(JOB, [later, earlier], WELL, now=NOW)
    assert everything is not None
    assert job is not None
    assert everything.text == "every backfill is paused by token 7 (ci)"
    assert job.text == "its history is paused by token 7 (ci): backfill_rate_limit is 0"
