"""Every message comes out of JSON as it went in, and what breaks an invariant is refused."""

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from service.protocol import mutation
from service.protocol.api import Registered, Registration
from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.cdc import SourceReport
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.dml import STATEMENT, Delete, InsertStaged, InsertValues, StatementResult, Unfinished, Update
from service.protocol.ids import COUNT_MAX, DATABASE_GRAPH, Epoch, Generation, RelationId, WorkerId
from service.protocol.mutation import MUTATION, Add, Pause, Resume, StartFragmentBackfill, Stop, Throttle
from service.protocol.plan import (
    ActorPlan,
    DmlPlan,
    JobPlan,
    OperatorPlan,
    PositionState,
    Prefix,
    ScanType,
    TableScanPlan,
    VnodePosition,
)
from service.protocol.relation import Relation, RelationKind
from service.protocol.report import ANSWER, ActorReport, Collected, DmlReport, Failed, RelationReport
from service.protocol.request import (
    REQUEST,
    RESPONSE,
    Rejected,
    Verified,
    Verify,
    VerifyStage,
    VnodeDifference,
)
from service.protocol.stage import Input, Join, JoinKind, Stage, Value

W = WorkerId("w")
IDS = st.integers(1, 2**63 - 1)
EPOCHS = st.integers(0, 2**63 - 2)
COUNTS = st.integers(0, COUNT_MAX)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TYPES = st.sampled_from([ColumnType.parse(text) for text in ("bigint", "text[]", "numeric(12,2)", "timestamptz")])
KEYS = st.lists(st.none() | TEXTS, min_size=1, max_size=3).map(tuple)
RUNS = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255)), max_size=2).map(tuple)


def few(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=2).map(tuple)


COLUMNS = st.builds(Column, name=TEXTS, type=TYPES, nullable=st.booleans(), hidden=st.booleans())


@st.composite
def relations(draw: st.DrawFn) -> Relation:
    columns = draw(st.lists(COLUMNS, min_size=1, max_size=3, unique_by=lambda column: column.name))
    key = [KeyColumn(name=column.name, descending=draw(st.booleans())) for column in columns[:2]]
    return Relation(
        id=RelationId(draw(IDS)),
        name=draw(TEXTS),
        kind=draw(st.sampled_from(RelationKind)),
        columns=tuple(columns),
        key=tuple(key),
        vnode_count=draw(st.integers(1, 2**15)),
    )


IN_PROGRESS = st.builds(
    VnodePosition, vnode=st.integers(0, 255), state=st.just(PositionState.IN_PROGRESS), key=KEYS, rows=COUNTS
)
COMPLETED = st.builds(
    VnodePosition, vnode=st.integers(0, 255), state=st.just(PositionState.COMPLETED), key=st.none(), rows=COUNTS
)
POSITIONS = few(IN_PROGRESS | COMPLETED)
DRIVERS = few(st.builds(Join, kind=st.just(JoinKind.INNER), inputs=few(st.builds(Input, alias=TEXTS, relation=IDS))))
VALUES = st.builds(
    Value, name=TEXTS, sql=TEXTS, spark=st.none() | TEXTS, refusal=st.none() | TEXTS, column=st.none() | TEXTS
)
QUERIES = st.builds(Stage, joins=DRIVERS, rows=few(VALUES))
PREFIXES = st.builds(Prefix, operator=st.integers(0, 9), alias=TEXTS)
ACTORS = few(st.builds(ActorPlan, id=IDS, vnodes=RUNS, positions=POSITIONS))
SCANS = st.builds(
    TableScanPlan,
    id=IDS,
    actors=ACTORS,
    upstream=relations(),
    query=QUERIES | PREFIXES,
    scan_type=st.sampled_from(ScanType),
    rate_limit=st.none() | COUNTS,
    waiting=st.booleans(),
)
OTHERS = st.builds(DmlPlan, id=IDS, actors=ACTORS) | st.builds(
    OperatorPlan, id=IDS, actors=ACTORS, query=QUERIES, inputs=few(relations()), output=IDS
)
JOBS = few(st.builds(JobPlan, id=IDS, relation=relations(), fragments=few(SCANS | OTHERS)))
MUTATIONS = st.one_of(
    st.builds(Pause),
    st.builds(Resume),
    st.builds(Throttle, fragments=st.dictionaries(IDS, st.none() | st.integers(0, 10**9), max_size=2)),
    st.builds(StartFragmentBackfill, fragments=few(IDS)),
    st.builds(Add, jobs=JOBS, paused=st.booleans()),
    st.builds(Stop, jobs=few(IDS)),
    st.builds(mutation.Update, fragments=st.dictionaries(IDS, ACTORS, max_size=2)),
)
STATEMENTS = st.one_of(
    st.builds(InsertValues, id=IDS, relation=relations(), columns=few(TEXTS), source=TEXTS),
    st.builds(
        Update, id=IDS, relation=relations(), assignments=few(st.tuples(TEXTS, TEXTS)), predicate=st.none() | TEXTS
    ),
    st.builds(Delete, id=IDS, relation=relations(), predicate=st.none() | TEXTS),
    st.builds(InsertStaged, id=IDS, relation=relations(), columns=few(TEXTS), first=COUNTS, last=COUNTS),
)
RESULTS = st.builds(StatementResult, id=IDS, affected=COUNTS, error=st.none() | TEXTS, sqlstate=st.none() | TEXTS)
ANSWERS = st.one_of(
    st.builds(
        Collected,
        worker=TEXTS,
        graph=IDS,
        generation=IDS,
        epoch=EPOCHS,
        reports=few(
            st.builds(
                ActorReport, actor=IDS, fragment=IDS, rows=COUNTS, snapshot_rows=COUNTS, upstream_rows=COUNTS,
                finished=st.booleans(), positions=POSITIONS,
            )
            | st.builds(SourceReport, source=IDS, offset=st.just("0/9"), waiting=st.none() | TEXTS, changes=COUNTS)
            | st.builds(DmlReport, results=few(RESULTS), unfinished=st.builds(Unfinished, set_aside=few(IDS)))
        ),
        relations=few(st.builds(RelationReport, relation=IDS, key_count_delta=st.integers(-COUNT_MAX, COUNT_MAX))),
        timings_ms=st.dictionaries(TEXTS, st.floats(allow_nan=False, allow_infinity=False), max_size=2),
    ),
    st.builds(
        Failed, worker=TEXTS, graph=IDS, generation=IDS, epoch=EPOCHS, error=TEXTS, job=st.none() | IDS,
        deterministic=st.booleans(),
    ),
)  # fmt: skip
REQUESTS = st.builds(
    Verify, id=IDS, graph=IDS, epoch=EPOCHS, relation_epoch=EPOCHS, relation=relations(),
    stages=few(
        st.builds(
            VerifyStage, stage=QUERIES, target=relations(), relations=few(relations()), positions=st.none() | POSITIONS
        )
    ),
)  # fmt: skip
DIFFERENCES = st.builds(
    VnodeDifference, vnode=st.integers(0, 255), missing=few(KEYS), extra=few(KEYS), unequal=few(KEYS)
)
RESPONSES = st.one_of(
    st.builds(Rejected, id=IDS, error=TEXTS),
    st.builds(
        Verified, id=IDS, epoch=EPOCHS, equal=st.booleans(), rows=COUNTS, expected_rows=COUNTS, digest=TEXTS,
        expected_digest=TEXTS, differences=few(DIFFERENCES),
    ),
)  # fmt: skip

UNIONS: dict[str, tuple[TypeAdapter[Any], st.SearchStrategy[Any]]] = {
    "mutation": (MUTATION, MUTATIONS),
    "statement": (STATEMENT, STATEMENTS),
    "answer": (ANSWER, ANSWERS),
    "request": (REQUEST, REQUESTS),
    "response": (RESPONSE, RESPONSES),
}


@pytest.mark.parametrize("union", UNIONS)
@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_messages_come_back_as_they_went(union: str, data: st.DataObject) -> None:
    adapter, messages = UNIONS[union]
    message = data.draw(messages)
    text = adapter.dump_json(message)
    assert adapter.validate_json(text) == message
    assert type(adapter.validate_json(text)) is type(message)
    assert re.search(r'"(epoch|prev|curr)":\s*[0-9]', text.decode()) is None, "an epoch is a string in JSON"


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MUTATIONS, few(STATEMENTS), EPOCHS, st.data())
def test_barriers_come_back_as_they_went(
    mutation: BaseModel, statements: tuple[BaseModel, ...], prev: int, data: st.DataObject
) -> None:
    kinds = list(BarrierKind) if isinstance(mutation, Add) else [BarrierKind.BARRIER, BarrierKind.CHECKPOINT]
    barrier = Barrier.model_validate(
        {
            "graph": 1,
            "generation": 2,
            "prev": prev,
            "curr": data.draw(st.integers(prev + 1, 2**63 - 1)),
            "kind": data.draw(st.sampled_from(kinds)),
            "mutation": mutation,
            "statements": statements,
        }
    )
    text = barrier.model_dump_json()
    assert Barrier.model_validate_json(text) == barrier
    assert json.loads(text)["prev"] == str(prev)


@given(mutation=st.builds(Add, jobs=few(st.builds(JobPlan, id=IDS, relation=relations(), fragments=few(SCANS)))))
def test_i13_a_relation_that_many_read_is_told_once(mutation: Add) -> None:
    jobs = tuple(one.model_copy(update={"id": number}) for number in range(1, 4) for one in mutation.jobs)
    many = mutation.model_copy(update={"jobs": jobs})
    text = many.model_dump_json()
    assert Add.model_validate_json(text) == many
    read = [one for job in jobs for one in (job.relation, *(each for scan in job.table_scans for each in scan.reads))]
    assume(len({one.model_dump_json() for one in read}) == len({one.id for one in read}))
    assert text.count('"columns":[{') == len({one.id for one in read})


@pytest.mark.parametrize(
    "message",
    [
        Registration(worker=W, graph=DATABASE_GRAPH, pid=1, host="h", parallelism=2),
        Registered(wait_seconds=1, lease_seconds=10, dml_url="postgresql://writer@db/state"),
    ],
)
def test_registrations_come_back_as_they_went(message: BaseModel) -> None:
    assert type(message).model_validate_json(message.model_dump_json()) == message


BARRIER: dict[str, Any] = {"graph": 1, "generation": 1, "prev": "1", "curr": "2", "kind": "barrier"}
POSITION: dict[str, Any] = {"vnode": 1, "state": "in_progress", "key": ["1"], "rows": 1}
RELATION: dict[str, Any] = {
    "id": 1,
    "name": "t",
    "kind": "table",
    "columns": [{"name": "a", "type": "int"}],
    "key": [{"name": "a"}],
}
SCAN: dict[str, Any] = {
    "id": 1,
    "kind": "STREAM_SCAN",
    "actors": [],
    "upstream": RELATION,
    "query": {"joins": [{"kind": "inner", "inputs": [{"alias": "i0", "relation": 1}]}]},
    "scan_type": "ARRANGEMENT_BACKFILL",
}


@pytest.mark.parametrize(
    ("model", "good", "change"),
    [
        (Barrier, BARRIER, {"curr": "1"}),
        (Barrier, BARRIER, {"kind": "initial"}),
        (Barrier, BARRIER, {"kind": "initial", "mutation": {"type": "pause"}}),
        (Barrier, BARRIER, {"mutation": {"type": "unknown"}}),
        (Barrier, BARRIER, {"mutation": {"type": "pause", "more": 1}}),
        (Barrier, BARRIER, {"mutation": {"type": "throttle", "fragments": {"1": -1}}}),
        (VnodePosition, POSITION, {"key": None}),
        (VnodePosition, POSITION, {"state": "completed"}),
        (VnodePosition, POSITION, {"state": "not_started"}),
        (VnodePosition, POSITION, {"rows": -1}),
        (Relation, RELATION, {"key": []}),
        (Relation, RELATION, {"key": [{"name": "b"}]}),
        (Relation, RELATION, {"columns": [{"name": "a", "type": "int"}, {"name": "a", "type": "text"}]}),
        (Relation, RELATION, {"columns": [{"name": "a", "type": "money"}]}),
        (TableScanPlan, SCAN, {"upstream": None}),
        (TableScanPlan, SCAN, {"query": None}),
        (TableScanPlan, SCAN, {"scan_type": None}),
        (TableScanPlan, SCAN, {"kind": "MATERIALIZE"}),
        (TableScanPlan, SCAN, {"rate_limit": -1}),
    ],
)
def test_what_breaks_an_invariant_is_refused(
    model: type[BaseModel], good: dict[str, Any], change: dict[str, Any]
) -> None:
    model.model_validate_json(json.dumps(good))
    with pytest.raises(ValidationError):
        model.model_validate_json(json.dumps({**good, **change}))


def test_an_epoch_beyond_double_precision_is_exact() -> None:
    epoch = Epoch(2**53 + 1)
    failed = Failed(worker=W, graph=DATABASE_GRAPH, generation=Generation(1), epoch=epoch, error="e")
    assert json.loads(failed.model_dump_json())["epoch"] == "9007199254740993"


@pytest.mark.parametrize("limit", ["true", '"5"', "5.0", "-1", "[5]"])
def test_a_limit_is_a_whole_number_or_none(limit: str) -> None:
    with pytest.raises(ValidationError):
        Throttle.model_validate_json(f'{{"type": "throttle", "fragments": {{"1": {limit}}}}}')
    told = Throttle.model_validate_json('{"type": "throttle", "fragments": {"1": 5, "2": null, "3": 0}}')
    assert told.fragments == {1: 5, 2: None, 3: 0}


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        ({"id": 1, "kind": "DML", "actors": [], "upstream": None, "query": None, "rate_limit": None}, DmlPlan),
        ({**SCAN, "cdc": None, "rate_limit": 5, "waiting": True}, TableScanPlan),
    ],
)
def test_a_fragment_that_an_earlier_release_has_stored_is_read(stored: dict[str, Any], kind: type[BaseModel]) -> None:
    """It had one class for all kinds, with nulls for what a kind has not."""
    plan = JobPlan.model_validate({"id": 1, "relation": RELATION, "fragments": [stored]})
    assert [type(fragment) for fragment in plan.fragments] == [kind]


def test_an_answer_of_many_faults_names_the_first() -> None:
    """I13: three faults for each of a million actors took gigabytes."""
    reports = [{"kind": "actor"}] * 1_000
    answer = {"type": "reported", "worker": "w", "graph": 1, "generation": 1, "epoch": "1", "reports": reports}
    with pytest.raises(ValidationError) as refused:
        ANSWER.validate_python(answer)
    assert refused.value.error_count() < 10


def test_an_answer_of_the_version_before_is_not_misread() -> None:
    """It had a list for each kind of report, and no field that names them all."""
    answer = {"type": "collected", "worker": "w", "graph": 1, "generation": 1, "epoch": "1", "actors": []}
    with pytest.raises(ValidationError):
        ANSWER.validate_python(answer)
