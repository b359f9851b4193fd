"""Queries in processes of their own: whatever becomes of one, the next one is answered."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import GraphId, RelationId, RequestId
from service.protocol.relation import Relation, RelationKind
from service.protocol.request import Rejected, Response, Select, Selected, Verify
from tests.support.waiting import PATIENCE, until
from workers.rpc import apart as rpc_apart
from workers.rpc.apart import Answer, Apart


def begin() -> Answer:
    """Answer with the id of the process, end it, or never answer, as `rows_max` says."""

    def answer(question: Select | Verify) -> Response:
        assert isinstance(question, Select)
        match question.rows_max:
            case 1:
                os._exit(1)
            case 2:
                threading.Event().wait()
            case _:
                pass
        return Selected(id=question.id, rows=((str(os.getpid()),),))

    return answer


def broken() -> Answer:
    """Fail to prepare a process."""
    raise RuntimeError("no Java")


@pytest.fixture(autouse=True)
def _no_question_is_long(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """On a slow machine the start of a process takes longer than a question may before another process starts."""
    monkeypatch.setattr(rpc_apart, "_LONG_SECONDS", PATIENCE)


def question(what: int = 0, timeout_ms: int = 600_000) -> Select:
    column = Column(name="c", type=ColumnType.parse("text"))
    relation = Relation(
        id=RelationId(1), name="q", kind=RelationKind.MATERIALIZED_VIEW, columns=(column,), key=(KeyColumn(name="c"),)
    )
    return Select(
        id=RequestId(7),
        graph=GraphId(1),
        relation=relation,
        stages=(),
        epochs={},
        rows_max=what,
        any_rows=False,
        bytes_max=1,
        timeout_ms=timeout_ms,
    )


def pid(response: Response) -> int:
    assert isinstance(response, Selected), response
    return int(str(response.rows[0][0]))


def end_all() -> None:
    """Kill the processes that answer, those that hang as well."""
    for one in multiprocessing.active_children():
        one.kill()


def has_ended(process: int) -> bool:
    """Whether a process has ended, with its other threads, which hold its files open."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        return "zombie" in status and len(list(Path(f"/proc/{process}/task").iterdir())) == 1
    except FileNotFoundError:
        return True


def test_i13_a_process_stays_until_a_query_ends_it() -> None:
    apart = Apart(begin)
    first = pid(apart.answer(question()))
    assert pid(apart.answer(question())) == first != os.getpid()
    ended = apart.answer(question(1))
    assert isinstance(ended, Rejected)
    assert "more memory than the process has" in ended.error
    second = pid(apart.answer(question()))
    assert second != first
    late = apart.answer(question(2, timeout_ms=100))
    assert isinstance(late, Rejected)
    assert late.error == "canceling statement due to statement timeout after 100 ms"
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)
    assert pid(apart.answer(question())) not in {first, second}


def test_the_first_process_is_prepared_once() -> None:
    apart = Apart(begin)
    known = {one.pid for one in multiprocessing.active_children()}
    for _ in range(3):
        apart.prepare()
    until(lambda: apart._ready.qsize() == 1, what="it is ready")  # pyright: ignore[reportPrivateUsage]
    (prepared,) = {one.pid for one in multiprocessing.active_children()} - known
    apart.prepare()
    assert pid(apart.answer(question())) == prepared


def test_i13_another_query_goes_on_beside_one_that_hangs() -> None:
    apart = Apart(begin)
    first = pid(apart.answer(question()))
    with ThreadPoolExecutor(2) as calls:
        hanging = calls.submit(apart.answer, question(2))
        until(apart._ready.empty, what="the first one is taken")  # pyright: ignore[reportPrivateUsage]
        free = pid(apart.answer(question()))
        assert free != first
        waiting = calls.submit(apart.answer, question(2))
        until(apart._ready.empty, what="both are taken")  # pyright: ignore[reportPrivateUsage]
        none = apart.answer(question(timeout_ms=50))
        assert isinstance(none, Rejected)
        assert none.error == "canceling statement due to statement timeout after 50 ms"
        end_all()
        assert isinstance(hanging.result(), Rejected)
        assert isinstance(waiting.result(), Rejected)
    assert pid(apart.answer(question())) != free


def test_i13_a_query_that_ends_its_process_has_its_answer_when_there_is_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc_apart, "_REPLACED_SECONDS", PATIENCE)
    apart = Apart(begin)
    known = {pid(apart.answer(question()))}
    for _ in range(3):
        assert isinstance(apart.answer(question(1)), Rejected)
        assert apart._ready.qsize() == 1  # pyright: ignore[reportPrivateUsage]
        known.add(pid(apart.answer(question())))
    assert len(known) == 4


def test_i13_another_process_starts_beside_one_that_is_taken_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_apart, "_LONG_SECONDS", 0.1)
    apart = Apart(begin)
    first = pid(apart.answer(question()))
    with ThreadPoolExecutor(1) as calls:
        calls.submit(apart.answer, question(2))
        until(lambda: apart._ready.qsize() == 1, what="another one")  # pyright: ignore[reportPrivateUsage]
        assert pid(apart.answer(question())) != first
        end_all()


def test_a_process_that_was_killed_meanwhile_is_replaced() -> None:
    apart = Apart(begin)
    for _ in range(2):
        killed = pid(apart.answer(question()))
        os.kill(killed, signal.SIGKILL)
        until(lambda killed=killed: has_ended(killed), what="it has ended")
        answer = apart.answer(question())
        assert isinstance(answer, Selected), answer


def test_a_process_that_does_not_start_is_told() -> None:
    apart = Apart(broken)
    for _ in range(2):
        answer = apart.answer(question())
        assert isinstance(answer, Rejected)
        assert "does not start" in answer.error


PROGRAM = """
from tests.unit.workers.test_apart import begin, pid, question
from workers.rpc.apart import Apart
if __name__ == "__main__":
    apart = Apart(begin)
    print(pid(apart.answer(question())), flush=True)
    apart.answer(question(2, timeout_ms=100_000))
"""


def test_a_process_ends_with_its_worker(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(tmp_path / "program.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        worker.kill()
    until(lambda: has_ended(child), what="it has ended")
