"""What the failure of a view's epoch tells: which relation, which job, what Spark said."""

from pathlib import Path

import pytest
from psycopg import errors

from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId
from tests.support.state_store import relation
from workers.runners.failure import TOO_LONG, JobFailedError, key_seconds, search_all
from workers.runners.memory_kills import MemoryKills

SPARK = (
    "An error occurred while calling o93.collectToPython.\n: org.apache.spark.SparkArithmeticException:"
    " [DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. If"
    ' necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012\n\tat org.apache.spark'
)


BINARY = (
    "adbc_driver_manager.IntegrityError: INTEGRITY: [libpq] Failed to execute COPY statement: PGRES_FATAL_ERROR ERROR: "
    ' new row violates check constraint "d must be finite"\nDETAIL:  Failing row contains (0003-09-16 BC).\n'
    "CONTEXT:  COPY t_7, line 1\n. SQLSTATE: 23514"
)


@pytest.mark.parametrize(
    ("text", "deterministic", "said"),
    [
        (SPARK, True, "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"),
        (
            "[USER_RAISED_EXCEPTION] negative substring length not allowed SQLSTATE: P0001",
            True,
            "[USER_RAISED_EXCEPTION] negative substring length not allowed SQLSTATE: P0001",
        ),
        (
            "Traceback\npsycopg.errors.DatetimeFieldOverflow: date out of range\nCONTEXT: COPY",
            True,
            "the state store refused a value: date out of range",
        ),
        (BINARY, True, 'the state store refused a value: new row violates check constraint "d must be finite"'),
        (
            'Traceback\npsycopg.errors.CheckViolation: new row violates check constraint "d must be finite"\nDETAIL:',
            True,
            'the state store refused a value: new row violates check constraint "d must be finite"',
        ),
        (
            "INTEGRITY: [libpq] Failed to execute COPY statement: ERROR:  duplicate key\n. SQLSTATE: 23505",
            False,
            "ValueError: INTEGRITY: [libpq] Failed to execute COPY statement: ERROR:  duplicate key",
        ),
        (
            "An error occurred while calling o9.\n: java.lang.ArithmeticException: Division impossible\n\tat java",
            True,
            "a value is out of range: Division impossible",
        ),
        (
            "Traceback\npsycopg.errors.ProgramLimitExceeded: index row size 2712 exceeds btree version 4 maximum 2704",
            True,
            f"{TOO_LONG}: index row size 2712 exceeds btree version 4 maximum 2704",
        ),
        (
            "Traceback\npsycopg.errors.ProgramLimitExceeded: index row requires 9024 bytes, maximum size is 8191",
            True,
            f"{TOO_LONG}: index row requires 9024 bytes, maximum size is 8191",
        ),
        (
            "Traceback\npsycopg.errors.UndefinedTable: gone",
            False,
            "ValueError: Traceback",
        ),
        ("\nthe connection broke", False, "ValueError: the connection broke"),
    ],
)
def test_a_failure_names_the_relation_the_job_and_the_upstream(text: str, deterministic: bool, said: str) -> None:
    error = JobFailedError(JobId(7), ValueError(text), target=relation(2, "m"), upstream=relation(1, "orders"))
    assert error.deterministic is deterministic
    assert error.reason == f'table "m" (job 7), reading "orders": {said}'


@pytest.mark.parametrize(
    ("error", "deterministic"),
    [
        (errors.ProgramLimitExceeded("no such key\nHINT: a shorter one"), True),
        (errors.NumericValueOutOfRange("no such key"), True),
        (errors.NotNullViolation("no such key"), True),
        # `date_part(u, t)`, `to_char(n, u)`: the unit and the format are values.
        (errors.FeatureNotSupported("no such key"), True),
        (errors.SyntaxError("no such key"), True),
        (errors.UndefinedFunction("no such key"), True),
        (errors.ConfigurationLimitExceeded("no such key"), True),
        (errors.DiskFull("no such key"), False),
        (errors.OutOfMemory("no such key"), False),
        (errors.AdminShutdown("no such key"), False),
        (errors.SerializationFailure("no such key"), False),
        (errors.UndefinedTable("no such key"), False),
        (errors.InternalError_("no such key"), False),
        (errors.UniqueViolation("no such key"), False),
        (errors.QueryCanceled("no such key"), False),
        (errors.OperationalError("no such key"), False),
    ],
)
def test_a_value_that_the_store_refuses_the_worker_itself_fails_its_job(
    error: errors.Error, deterministic: bool
) -> None:
    failed = JobFailedError(JobId(7), error, target=relation(2, "m"), upstream=relation(2, "m"), computing=False)
    assert failed.deterministic is deterministic
    assert ("the state store refused a value: no such key" in failed.reason) is deterministic


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.OutOfMemory("out of memory\nDETAIL: Failed on request of size 64"), "out of memory"),
        (
            OSError("[libpq] ReadRecord failed at row 0: Array value with lower bound not in {0, 1}"),
            "a value cannot be read: Array value with lower bound not in {0, 1}",
        ),
    ],
)
def test_i13_what_needs_as_much_at_each_attempt_fails_its_job_at_once(error: Exception, said: str) -> None:
    """Eight views of one row had the graph recover eleven times, and an array with other bounds without end."""
    failed = JobFailedError(JobId(7), error, target=relation(2, "m"), upstream=relation(1, "orders"))
    assert failed.deterministic
    assert said in failed.reason


@pytest.mark.parametrize(
    ("error", "suspect"),
    [
        (errors.OutOfMemory("out of shared memory\nHINT: more locks"), True),
        (errors.InternalError_("no more"), True),
        (errors.UndefinedTable("no more"), True),
        (ValueError("Traceback\npsycopg.errors.OutOfMemory: no more"), True),
        (errors.DiskFull("no more"), False),
        (errors.TooManyConnections("no more"), False),
        (errors.AdminShutdown("no more"), False),
        (errors.DeadlockDetected("no more"), False),
        (errors.OperationalError("no more"), False),
        (errors.FeatureNotSupported("no more"), False),
    ],
)
def test_i13_a_job_is_suspected_of_what_the_moment_or_a_value_may_cause(error: Exception, suspect: bool) -> None:
    """Its graph recovered every 6 s, and all INSERTs waited, until somebody dropped the view."""

    def failed(*, computing: bool) -> JobFailedError:
        of, by = relation(1, "orders"), relation(2, "m")
        return JobFailedError(JobId(7), error, target=by, upstream=of, computing=computing)

    assert failed(computing=True).suspect is suspect
    assert not failed(computing=False).suspect


def test_n7a_a_value_that_is_too_large_for_any_store_is_not_tried_again() -> None:
    """I13: Postgres reports it as an internal error (XX000)."""
    error = errors.InternalError_("invalid memory alloc request size 1200000004")
    assert JobFailedError(JobId(7), error, target=relation(2, "m"), upstream=relation(1, "t")).deterministic


@pytest.mark.parametrize(
    "text",
    [
        "java.lang.OutOfMemoryError: Java heap space",
        "MemoryError",
        "ExecutorLostFailure (executor 1 exited) Reason: Command exited with code 52",
        "The executor with id 3 exited with exit code 52(JVM OOM).",
    ],
)
def test_a_task_without_memory_is_told_and_a_scan_that_only_waited_is_not_suspected(text: str) -> None:
    def failure(*, computing: bool) -> JobFailedError:
        of, by = relation(1, "orders"), relation(2, "m")
        return JobFailedError(JobId(7), ValueError(text), target=by, upstream=of, computing=computing)

    assert failure(computing=True).suspect
    assert "take more memory than a worker has" in failure(computing=True).reason
    assert not failure(computing=False).suspect


def test_a_value_that_is_called_like_an_error_of_memory_is_an_error_of_its_row() -> None:
    text = "[CAST_INVALID_INPUT] The value 'MemoryError' cannot be cast. SQLSTATE: 22018"
    error = JobFailedError(JobId(7), ValueError(text), target=relation(2, "m"), upstream=relation(1, "orders"))
    assert error.deterministic
    assert not error.suspect
    assert error.reason.endswith(text)


def test_a_failure_that_would_come_again_names_the_row_and_another_does_not_look_for_one() -> None:
    def failure(text: str) -> str:
        of, by = relation(1, "orders"), relation(2, "m")
        error = JobFailedError(JobId(7), ValueError(text), target=by, upstream=of, find_key=lambda _: "(id) = (5)")
        error.search(1.0)
        return error.reason

    assert 'reading "orders" at (id) = (5): [DIVIDE_BY_ZERO]' in failure(SPARK)
    assert failure("the connection broke").endswith('reading "orders": ValueError: the connection broke')


def test_the_rows_of_all_jobs_are_searched_for_within_one_time() -> None:
    """I13: the graph waits for the searches of one epoch together, however many jobs failed in it."""
    seconds, given = 100.0, list[float]()

    def find_key(left: float) -> str:
        nonlocal seconds
        given.append(left)
        seconds += 4
        return "(id) = (5)"

    of, by = relation(1, "orders"), relation(2, "m")
    failures = [
        JobFailedError(JobId(n), ValueError(SPARK), target=by, upstream=of, find_key=find_key) for n in range(9)
    ]
    search_all(failures, lambda: seconds, seconds=10.0)
    assert given == [10.0, 6.0, 2.0]
    assert ["at (id) = (5)" in failure.reason for failure in failures] == [True] * 3 + [False] * 6


def test_n7a_the_rows_of_a_graph_of_its_own_are_searched_for_longer() -> None:
    """I13: everybody waits for a search in the database graph."""
    assert key_seconds(DATABASE_GRAPH) <= 10
    assert key_seconds(GraphId(7)) > 10


def test_a_python_process_suspects_its_job_only_if_the_kernel_ended_one_for_want_of_memory(tmp_path: Path) -> None:
    """I3, I13: whoever kills a process suspects nobody, and a job that takes all memory is not tried for ever."""
    counters = tmp_path / "vmstat"
    counters.write_text("nr_free_pages 3\noom_kill 4\n")
    kills = MemoryKills(counters)

    def exhausted() -> bool:
        of, by = relation(1, "orders"), relation(2, "m")
        error = ValueError("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")
        return JobFailedError(JobId(7), error, target=by, upstream=of, kills=kills).suspect

    assert not exhausted()
    counters.write_text("nr_free_pages 3\noom_kill 5\n")
    assert exhausted()
    assert not exhausted()
    counters.unlink()
    assert not exhausted()
