"""What pages make of the read model: troubles with their ways out, boxes, bars, controls, parameters."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.domain.job import JobState
from service.domain.parameters import SystemParameters
from service.domain.progress import Phase
from service.domain.roles import Role
from service.domain.waiting import Reason, Waiting
from service.operations.status.lineage import LakeVersion, Lineage, Member
from service.operations.status.models import (
    BarrierView,
    Broken,
    FragmentView,
    JobDetail,
    JobView,
    PositionCounts,
    ProgressView,
)
from service.pages.data.audit import jobs_of
from service.pages.data.barriers import HEIGHT, height_ms, stacks
from service.pages.data.bars import job_bar, moving
from service.pages.data.graph import DRAWN_MAX, graph
from service.pages.data.job import controls, events_of, page, phases
from service.pages.data.jobs import FILTERS, row, why_of
from service.pages.data.parameters import rows
from service.pages.data.sinks import sorted_out
from service.pages.data.trouble import troubles
from service.ports.audit import AuditEntry, Outcome
from service.ports.records import Event
from service.protocol.ids import FragmentId, JobId, RelationId
from service.protocol.plan import FragmentKind
from service.protocol.relation import RelationKind

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
READY = {"meta_store": "ok", "worker": "ok"}


def progress(**more: Any) -> ProgressView:
    known: dict[str, Any] = {"text": "30.00% (60/200)", "phase": Phase.BACKFILLING, "rows": 60, "total": 200}
    known |= {"percent": 30.0, "rows_per_second": 20.0, "eta_seconds": 7.0, "waiting_for": None}
    return ProgressView(**{**known, **more})


def job(**more: Any) -> JobView:
    known: dict[str, Any] = {"id": JobId(7), "relation": RelationId(7), "name": "m", "statement": "", "error": None}
    known |= {"kind": RelationKind.MATERIALIZED_VIEW, "state": JobState.CREATING, "background": True}
    known |= {"created_by": "ci", "initialized_at": NOW, "started_at": NOW, "finished_at": None, "failures": 0}
    known |= dict.fromkeys(("parallelism", "backfill_parallelism", "resource_group", "own_graph"))
    known |= {"recoveries": 0, "state_since": NOW, "waiting": None, "broken": None, "progress": progress()}
    return JobView(**{**known, **more})


def waiting(reason: Reason) -> Waiting:
    return Waiting(reason, f"because of {reason}", NOW - timedelta(seconds=90))


CREATED = job(state=JobState.CREATED, finished_at=NOW, progress=progress(phase=Phase.CREATED))


def test_troubles_come_worst_first_with_a_way_out() -> None:
    jobs = [
        job(id=JobId(1), name="queued", state=JobState.QUEUED, waiting=waiting(Reason.QUEUE)),
        job(id=JobId(2), name="stale", broken=Broken("stale", "it reads t", None, "t")),
        job(id=JobId(3), name="failed", state=JobState.FAILED, error="a value", finished_at=NOW),
        job(id=JobId(4), name="broken", broken=Broken("broken", "a change is missing", NOW, None)),
        job(id=JobId(5), name="starting", waiting=waiting(Reason.START)),
        replace(CREATED, id=JobId(6), name="sink"),
        CREATED,
    ]
    checks = {**READY, "worker": "no worker is alive"}
    found = troubles(checks, jobs, [], {JobId(6): "its graph failed 3 times in a row: away"}, NOW)
    assert [(one.word, one.about) for one in found] == [
        ("not ready", "worker"),
        ("broken", "broken"),
        ("failed", "failed"),
        ("stale", "stale"),
        ("waits", "queued"),
        ("waits", "sink"),
    ]
    assert all(one.way and one.way_address for one in found)
    assert found[4].since == "1:30"
    assert found[4].way_address == "/parameters"
    assert (found[3].way, found[3].way_address) == ("The job's page", "/jobs/2"), "t is not among the jobs"
    (_, stale) = troubles(READY, [jobs[3], job(broken=Broken("stale", "it reads broken", None, "broken"))], [], {}, NOW)
    assert (stale.way, stale.way_address) == ("broken has the fault", "/jobs/4")
    assert troubles(READY, [CREATED], [], {}, NOW) == ()
    (found,) = troubles({"graph": "RECOVERING: a worker: it died"}, [], [], {}, NOW)
    assert found.text == "Recovering: a worker: it died"


def test_many_jobs_that_wait_for_the_same_thing_are_one_trouble() -> None:
    def waits(count: int) -> list[tuple[str, str]]:
        jobs = [job(id=JobId(at), name=f"m{at}", waiting=waiting(Reason.WORKER)) for at in range(count)]
        other = job(id=JobId(70), name="paused", waiting=waiting(Reason.PAUSE))
        return [(one.about, one.text) for one in troubles(READY, [*jobs, other], [], {}, NOW)][:-1]

    text = f"because of {Reason.WORKER}"
    assert waits(2) == [("m0", text), ("m1", text)]
    assert waits(3) == [("3 jobs", f"{text}: m0, m1, m2")]
    assert waits(1_005) == [("1,005 jobs", f"{text}: m0, m1, m2 and 1,002 more")]


def test_every_reason_of_a_wait_has_a_way_out() -> None:
    for reason in set(Reason) - {Reason.START, Reason.FIRST_BARRIER, Reason.STOP}:
        (found,) = troubles(READY, [job(waiting=waiting(reason))], [], {}, NOW)
        assert found.way


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (CREATED, "current"),
        (job(), "backfilling"),
        (job(waiting=waiting(Reason.WORKER)), "waits"),
        (job(state=JobState.FAILED), "failed"),
        (replace(CREATED, broken=Broken("stale", "", None, None)), "stale"),
    ],
)
def test_a_box_says_its_state_in_one_word(given: JobView, word: str) -> None:
    member = Member(RelationId(7), "m", RelationKind.MATERIALIZED_VIEW, given.id, given.state, readable=True)
    (box,) = graph(Lineage((member,), ()), {given.id: given}).boxes
    assert (box.word, box.address) == (word, "/jobs/7")


def test_logical_views_over_a_broken_table_are_stale_in_the_picture() -> None:
    table = replace(CREATED, broken=Broken("broken", "", None, None))
    members = (
        Member(RelationId(7), "m", RelationKind.TABLE, table.id, table.state, readable=True),
        *(Member(RelationId(at), f"v{at}", RelationKind.VIEW, None, None, readable=True) for at in (8, 9, 10)),
    )
    edges = ((RelationId(8), RelationId(9)), (RelationId(7), RelationId(8)))
    found = graph(Lineage(members, edges), {table.id: table}, (), {RelationId(at) for at in (7, 8, 9)})
    assert [box.word for box in found.boxes] == ["broken", "stale", "stale", "ready"]


def test_what_only_the_service_reads_is_neither_drawn_nor_counted() -> None:
    inner = Member(RelationId(8), "__m_1", RelationKind.INTERNAL, JobId(7), JobState.CREATED, readable=True)
    found = graph(Lineage((inner,), ()), {})
    assert (found.boxes, found.hidden) == ((), 0)


def test_a_graph_draws_some_relations_and_counts_the_others() -> None:
    members = tuple(
        Member(RelationId(at), f"v{at}", RelationKind.VIEW, None, None, readable=True) for at in range(DRAWN_MAX + 7)
    )
    found = graph(Lineage(members, ()), {})
    assert (len(found.boxes), found.hidden) == (DRAWN_MAX, 7)
    assert {box.word for box in found.boxes} == {"ready"}


def test_a_job_that_is_held_up_has_no_rate_and_a_finished_one_no_bar() -> None:
    assert moving(job()) == ("20 rows/s", "0:07")
    assert moving(job(waiting=waiting(Reason.LIMIT))) == ("20 rows/s", "0:07")
    assert moving(job(waiting=waiting(Reason.WORKER))) == ("", "")
    assert job_bar(CREATED) is None
    shown = job_bar(job())
    assert shown is not None
    assert shown.percent == 30.0


def test_why_a_job_waits_is_its_error_before_anything_else() -> None:
    broken = Broken("failed", "of old", None, None)
    assert why_of(job(error="new", broken=broken))[0] == "new"
    assert why_of(job(broken=broken))[0] == "of old"
    assert row(job(waiting=waiting(Reason.QUEUE)), NOW).since == "1:30"
    assert why_of(CREATED, "stuck")[0] == "stuck"


def test_the_list_of_jobs_names_the_state_of_what_is_not_kept_current() -> None:
    broken = Broken("broken", "a change is missing", None, None)
    found = row(replace(CREATED, broken=broken), NOW)
    assert (found.state, found.fault) == ("Created", "broken")
    assert row(CREATED, NOW).fault == ""
    assert row(job(state=JobState.FAILED, error="new", broken=Broken("failed", "new", None, None)), NOW).fault == ""


@pytest.mark.parametrize(
    ("route", "statement", "target", "jobs"),
    [
        ("/v1/jobs/{job}/pause", None, "7", (7,)),
        ("/jobs/act", "pause", "7", (7,)),
        ("/v1/sql", "CANCEL JOBS 7, 8", "7, 8", (7, 8)),
        ("/v1/jobs/{job}", "{}", "m", ()),
        ("/v1/jobs/{job}", "{}", "9" * 30, ()),
        ("/v1/fragments/{fragment}", "{}", "7", ()),
        ("/v1/sql", "DROP TABLE t", "7", ()),
        ("/jobs/act", None, None, ()),
    ],
)
def test_an_entry_names_jobs_by_number(
    route: str, statement: str | None, target: str | None, jobs: tuple[int, ...]
) -> None:
    known: dict[str, Any] = {"id": 1, "at": NOW, "actor": "ci", "role": Role.OPERATOR, "method": "POST"}
    known |= {"outcome": Outcome.ACCEPTED, "request_id": None, "trace_id": None}
    found = jobs_of(AuditEntry(**known, route=route, statement=statement, target=target))
    assert tuple(found) == jobs


def test_a_limit_that_is_not_set_is_unlimited() -> None:
    known: dict[str, Any] = {"id": FragmentId(1), "job": JobId(7), "upstream": "t", "scan_type": None, "auto": None}
    known |= {"kind": FragmentKind.STREAM_SCAN, "waiting": False, "waits_for": (), "rows": 0, "total": None}
    known |= {"rows_per_second": 0.0, "finished": False, "positions": PositionCounts(0, 0, 0, 0), "actors": ()}
    detail = JobDetail(job(), (FragmentView(**known, rate_limit=None), FragmentView(**known, rate_limit=500)), (), {})
    found = page(detail, {}, (), (), None, NOW)
    assert [one.limit for one in found.scans] == ["unlimited", "500 rows/s and actor"]


def test_a_filter_is_named_for_each_state() -> None:
    assert set(JobState) <= set(FILTERS)
    assert JobState.DROPPED not in FILTERS["present"]


def test_what_may_be_done_follows_from_the_state() -> None:
    assert controls(job(), ()).cancel
    assert not controls(job(), ()).verify
    assert controls(CREATED, ()).verify
    assert not controls(CREATED, ()).limit
    assert not controls(job(state=JobState.FAILED), ()).rescale
    assert controls(replace(CREATED, broken=Broken("broken", "", None, None)), ()).reload


def test_phases_have_their_instants_and_events_are_those_of_the_job() -> None:
    assert [name for name, _, _ in phases(CREATED, NOW)] == ["asked for", "started", "created", "Created since"][:3]
    failed = replace(CREATED, state=JobState.FAILED, broken=Broken("failed", "of old", None, None))
    assert [name for name, _, _ in phases(failed, NOW)][:3] == ["asked for", "started", "created"]
    facts: list[dict[str, Any]] = [{"job": 7}, {"jobs": [1, 7]}, {"relation": 7}, {"job": 8}, {"jobs": 7}, {}]
    events = [Event(at, NOW, "job.asked", one) for at, one in enumerate(facts)]
    assert [event.id for event in events_of(CREATED, events)] == [0, 1, 2]


def test_sinks_and_the_lake_are_found_among_jobs() -> None:
    sink = replace(CREATED, id=JobId(1), kind=RelationKind.SINK)
    lake = replace(CREATED, id=JobId(2), statement="CREATE TABLE t (*) WITH (connector = 'deltalake', location = '/x')")
    members = [Member(RelationId(20), "t", RelationKind.TABLE, lake.id, lake.state, readable=True, location="/x")]
    version = LakeVersion(17, NOW)
    found = sorted_out([sink, lake, CREATED], members, {RelationId(20): version}, NOW, {JobId(1): "away"})
    assert [one.id for one in found.sinks] == [1]
    assert found.sinks[0].why == "away"
    assert ([one.id for one in found.lake], found.places, found.versions) == ([2], {2: "/x"}, {2: version})


def test_parameters_that_were_changed_come_first() -> None:
    found = rows(replace(SystemParameters(), view_rows_max=7, pause_on_next_bootstrap=True))
    assert [(one.name, one.value) for one in found[:2]] == [("pause_on_next_bootstrap", "true"), ("view_rows_max", "7")]
    assert [one.changed for one in found].count(True) == 2
    assert all(one.takes for one in found)


def test_the_latencies_of_a_barrier_are_stacked() -> None:
    known: dict[str, Any] = dict.fromkeys(("mutation", "collected_at", "committed_at", "published_at", "failure"))
    known |= {"epoch": 2, "prev": 1, "kind": "checkpoint", "generation": 1, "injected_at": NOW, "timings_ms": {}}
    known |= {"collect_ms": 50.0, "commit_ms": 25.0, "publish_ms": None, "latency_ms": None}
    (found,) = stacks([BarrierView(**known)], 100.0)
    assert found.parts == (
        ("collect", HEIGHT / 2, HEIGHT / 2),
        ("commit", HEIGHT / 4, HEIGHT / 4),
        ("publish", 30.0, 0.0),
    )
    assert found.text == "2026-05-01 12:00:00Z: collect 50 ms, commit 25 ms, publish -"
    assert height_ms(BarrierView(**known)) == 75.0
    assert height_ms(replace(BarrierView(**known), latency_ms=90.0)) == 90.0
