"""The launcher with real processes: a small program stands in for the worker, and behaves as badly as one can."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from service.launchers import worker_home
from service.launchers.processes import wait_for_end
from service.launchers.subprocess import SubprocessLauncher
from service.launchers.worker_environment import WorkerSettings
from service.launchers.worker_home import make_home
from service.ports.launcher import Ended
from service.protocol.ids import DATABASE_GRAPH, GraphId, WorkerId

WORKER = r"""
import json, os, signal, subprocess, sys, tempfile

# A driver, a JVM and its daemons: the last one leaves the process group and forgets its environment.
child = [sys.executable, "-c", "import os, signal; os.setpgid(0, 0); print(flush=True)\nwhile True: signal.pause()"]
children = [subprocess.Popen(child, stdout=subprocess.PIPE), subprocess.Popen(child, stdout=subprocess.PIPE, env={})]
for process in children:
    process.stdout.readline()
secrets = os.environ["TIDEFILL_SECRETS_DIR"]
report = {
    "pid": os.getpid(),
    "children": [process.pid for process in children],
    "environment": dict(os.environ),
    "cwd": os.getcwd(),
    "temporary": tempfile.mkstemp()[1],
    "secrets": {name: open(f"{secrets}/{name}").read() for name in os.listdir(secrets)},
    "modes": [os.stat(path).st_mode for path in [secrets, *(f"{secrets}/{name}" for name in os.listdir(secrets))]],
}
if MODE == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif MODE == "clean":
    def end(*_):
        for process in children:
            process.kill()
        print("ended by itself", flush=True)
        os._exit(0)
    signal.signal(signal.SIGTERM, end)
with open(READY, "w") as ready:
    ready.write(json.dumps(report))
while True:
    signal.pause()
"""
BROKEN = """
import os
print("broken", flush=True)
with open(READY, "w") as ready:
    ready.write(str(os.getpid()))
raise SystemExit(3)
"""
SERVICE_THAT_IS_KILLED = """
import asyncio, os, signal, sys
sys.path.insert(0, {root!r})
from tests.integration.launchers.test_subprocess import launcher_of, look
from pathlib import Path

async def main():
    await look(launcher_of(Path({data_dir!r}), Path({ready!r})))
    open({ready!r}).read()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


class HandClock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds


def launcher_of(
    data_dir: Path,
    ready: Path,
    *,
    mode: str = "plain",
    clock: HandClock | None = None,
    program: str = WORKER,
    stop_after: timedelta = timedelta(seconds=10),
) -> SubprocessLauncher:
    settings = WorkerSettings(
        data_dir=data_dir,
        service_url="http://127.0.0.1:8700",
        graph=DATABASE_GRAPH,
        spark_master="local[1]",
        java_home=Path("/java"),
        worker_token=SecretStr("hush-token"),
        state_store_url=SecretStr("hush-state"),
        serverless_spark_master="local[7]",
        serverless_spark_conf='{"spark.driver.memory": "2g"}',
    )
    return SubprocessLauncher(
        settings,
        clock=clock or HandClock(),
        new_worker_id=lambda: WorkerId(str(uuid.UUID(bytes=os.urandom(16)))),
        command=(sys.executable, "-c", f"MODE, READY = {mode!r}, {str(ready)!r}\n{program}"),
        stop_after=stop_after,
    )


async def ends(
    launcher: SubprocessLauncher, given_up: Collection[WorkerId] = (), graphs: Collection[GraphId] = (DATABASE_GRAPH,)
) -> Sequence[Ended]:
    """Look once, when these graphs are to have a worker."""
    return await launcher.supervise(given_up, kept=graphs, missing=graphs)


async def look(
    launcher: SubprocessLauncher, given_up: Collection[WorkerId] = (), graphs: Collection[GraphId] = (DATABASE_GRAPH,)
) -> list[WorkerId]:
    """Look once; return the workers that have ended."""
    return [ended.worker for ended in await ends(launcher, given_up, graphs)]


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A worker writes here once it is up: reading waits for it."""
    path = tmp_path / "ready"
    os.mkfifo(path)
    return path


@pytest.fixture
async def launch(tmp_path: Path, ready: Path) -> AsyncGenerator[Callable[..., SubprocessLauncher]]:
    launchers: list[SubprocessLauncher] = []

    def make(**options: Any) -> SubprocessLauncher:
        launchers.append(launcher_of(tmp_path / "data", ready, **options))
        return launchers[-1]

    yield make
    for launcher in launchers:
        await launcher.stop()


def _report(ready: Path) -> dict[str, Any]:
    return json.loads(ready.read_text())


def _worker(report: dict[str, Any]) -> WorkerId:
    return WorkerId(report["environment"]["TIDEFILL_WORKER_ID"])


def _command_line(report: dict[str, Any]) -> str:
    return Path(f"/proc/{report['pid']}/cmdline").read_text()


def _alive(report: dict[str, Any]) -> list[int]:
    return [pid for pid in [report["pid"], *report["children"]] if _runs(pid)]


def _kept(report: dict[str, Any]) -> bool:
    """Whether the directory of the worker's temporary files is there."""
    return Path(report["temporary"]).parent.exists()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_secrets_are_in_private_files_and_nowhere_else(
    launch: Callable[..., SubprocessLauncher], ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEFILL_DATABASE_URL", "hush")
    monkeypatch.setenv("PGPASSWORD", "hush")
    await look(launch())
    report = _report(ready)
    assert report["secrets"] == {
        "tidefill_worker_token": "hush-token",
        "tidefill_state_store_url": "hush-state",
    }
    assert [stat.S_IMODE(mode) for mode in report["modes"]] == [0o700, 0o600, 0o600]
    assert "hush" not in json.dumps(report["environment"])
    assert "hush" not in _command_line(report)


async def test_one_worker_is_kept_and_a_tick_changes_nothing(
    launch: Callable[..., SubprocessLauncher], ready: Path
) -> None:
    launcher = launch()
    assert await look(launcher) == []
    report = _report(ready)
    for _ in range(3):
        assert await look(launcher, [WorkerId("somebody-long-gone")]) == []
    assert len(_alive(report)) == 3


async def test_a_given_up_worker_goes_with_all_its_processes(
    launch: Callable[..., SubprocessLauncher], ready: Path, tmp_path: Path
) -> None:
    launcher = launch(mode="stubborn")
    await look(launcher)
    report = _report(ready)
    # A worker that hangs cannot even be asked.
    os.kill(report["pid"], signal.SIGSTOP)
    assert await look(launcher, [_worker(report)]) == [_worker(report)]
    assert _alive(report) == []
    assert list((tmp_path / "data" / "workers").iterdir()) == []
    assert await look(launcher, [_worker(report)]) == []


async def test_a_dead_driver_takes_its_children_along(launch: Callable[..., SubprocessLauncher], ready: Path) -> None:
    launcher = launch()
    await look(launcher)
    report = _report(ready)
    os.kill(report["pid"], signal.SIGKILL)
    assert wait_for_end(report["pid"], 30)
    assert len(_alive(report)) == 2
    assert _kept(report)
    assert await look(launcher) == [_worker(report)]
    assert _alive(report) == []
    assert not _kept(report)


async def test_a_new_worker_has_a_new_identity_and_waits_its_time(
    launch: Callable[..., SubprocessLauncher], ready: Path, tmp_path: Path
) -> None:
    clock = HandClock()
    launcher = launch(clock=clock)
    await look(launcher)
    first = _report(ready)
    await look(launcher, [_worker(first)])
    clock.seconds += 0.49
    await look(launcher)
    assert list((tmp_path / "data" / "workers").iterdir()) == []
    clock.seconds += 0.02
    await look(launcher)
    second = _report(ready)
    assert _worker(second) != _worker(first)
    assert len(_alive(second)) == 3


async def test_a_crash_loop_does_not_spin_and_keeps_few_logs(
    launch: Callable[..., SubprocessLauncher], ready: Path, tmp_path: Path
) -> None:
    clock = HandClock()
    launcher = launch(clock=clock, program=BROKEN)
    started = 0
    for _ in range(100):
        await look(launcher)
        if list((tmp_path / "data" / "workers").iterdir()):
            started += 1
            pid = int(await asyncio.to_thread(ready.read_text))
            await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        clock.seconds += 10
    # 1,000 s of it, a death being noticed 10 s later: a few starts until the wait has grown, then one in 40 s.
    assert 25 <= started <= 30
    logs = list((tmp_path / "data" / "logs").iterdir())
    assert len(logs) == 20
    assert {log.read_text() for log in logs} == {"broken\n"}
    assert {stat.S_IMODE(log.stat().st_mode) for log in logs} == {0o600}


async def test_stop_asks_first(launch: Callable[..., SubprocessLauncher], ready: Path, tmp_path: Path) -> None:
    launcher = launch(mode="clean")
    await look(launcher)
    report = _report(ready)
    await launcher.stop()
    assert _alive(report) == []
    assert not _kept(report)
    assert (tmp_path / "data" / "logs" / f"worker-{_worker(report)}.log").read_text() == "ended by itself\n"
    assert list((tmp_path / "data" / "workers").iterdir()) == []


async def test_stop_ends_a_worker_that_will_not(tmp_path: Path, ready: Path) -> None:
    launcher = launcher_of(tmp_path / "data", ready, mode="stubborn", stop_after=timedelta(milliseconds=200))
    await look(launcher)
    report = _report(ready)
    await launcher.stop()
    assert _alive(report) == []


async def test_nothing_is_started_after_a_stop(launch: Callable[..., SubprocessLauncher], tmp_path: Path) -> None:
    launcher = launch()
    await launcher.stop()
    await look(launcher)
    assert not (tmp_path / "data" / "workers").exists()


async def test_the_worker_of_a_killed_service_is_ended_by_the_next(
    launch: Callable[..., SubprocessLauncher], ready: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "report"
    root = str(Path(__file__).parents[3])
    source = SERVICE_THAT_IS_KILLED.format(root=root, data_dir=str(tmp_path / "data"), ready=str(ready))
    source = source.replace(
        f"open({str(ready)!r}).read()", f"open({str(kept)!r}, 'w').write(open({str(ready)!r}).read())"
    )
    ended = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", source], check=False)
    assert ended.returncode == -signal.SIGKILL
    orphan = json.loads(kept.read_text())
    assert len(_alive(orphan)) == 3
    launcher = launch()
    assert await look(launcher) == [_worker(orphan)]
    successor = _report(ready)
    assert _alive(orphan) == []
    assert len(_alive(successor)) == 3
    assert [home.name for home in (tmp_path / "data" / "workers").iterdir()] == [_worker(successor)]
    assert not _kept(orphan)
    assert _kept(successor)


async def test_a_leftover_that_the_kernel_keeps_holds_up_no_other_worker(
    launch: Callable[..., SubprocessLauncher], ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13."""
    for name in ("kept", "other"):
        home = make_home(tmp_path / "data", WorkerId(name), {})
        home.lock.close()
    end = worker_home.end_processes

    def ending(worker: WorkerId, session: int | None = None) -> None:
        if worker == "kept":
            raise TimeoutError("a process does not end")
        end(worker, session)

    monkeypatch.setattr(worker_home, "end_processes", ending)
    launcher = launch()
    assert await look(launcher) == ["other"]
    assert len(_alive(_report(ready))) == 3


async def test_the_worker_of_a_living_service_is_left_alone(
    launch: Callable[..., SubprocessLauncher], ready: Path
) -> None:
    first = launch()
    await look(first)
    theirs = _report(ready)
    second = launch()
    assert await look(second) == []
    ours = _report(ready)
    assert len(_alive(theirs)) == 3
    assert len(_alive(ours)) == 3


OWN = GraphId(7)
BOTH = (DATABASE_GRAPH, OWN)


async def started_for(launcher: SubprocessLauncher, ready: Path, graph: GraphId) -> dict[str, Any]:
    """Have a worker started for one more graph than there are; return what it says."""
    graphs = {*launcher.graphs, graph}
    assert await look(launcher, graphs=graphs) == []
    report = await asyncio.to_thread(_report, ready)
    assert report["environment"]["TIDEFILL_GRAPH"] == str(graph)
    return report


async def test_a_graph_has_a_worker_of_its_own_until_it_needs_it_no_more(
    launch: Callable[..., SubprocessLauncher], ready: Path, tmp_path: Path
) -> None:
    launcher = launch(mode="clean")
    shared = await started_for(launcher, ready, DATABASE_GRAPH)
    own = await started_for(launcher, ready, OWN)
    assert own["environment"]["TIDEFILL_SPARK_MASTER"] == "local[7]"
    assert json.loads(own["environment"]["TIDEFILL_SPARK_CONF"]) == {"spark.driver.memory": "2g"}
    assert shared["environment"]["TIDEFILL_SPARK_MASTER"] == "local[1]"
    assert await look(launcher, graphs=BOTH) == []
    # It is asked to end, and nobody waits for that; it may be quick.
    at_once = await ends(launcher)
    assert wait_for_end(own["pid"], 30)
    (ended,) = at_once or await ends(launcher)
    assert (ended.worker, ended.graph, ended.asked, ended.failures) == (_worker(own), OWN, True, 0)
    assert _alive(own) == []
    assert len(_alive(shared)) == 3
    assert [home.name for home in (tmp_path / "data" / "workers").iterdir()] == [_worker(shared)]
    assert (tmp_path / "data" / "logs" / f"worker-{_worker(own)}.log").read_text() == "ended by itself\n"


async def test_one_that_does_not_end_when_it_is_asked_is_ended_after_a_while(
    launch: Callable[..., SubprocessLauncher], ready: Path
) -> None:
    clock = HandClock()
    launcher = launch(mode="stubborn", clock=clock)
    own = await started_for(launcher, ready, OWN)
    assert await look(launcher, graphs=()) == []
    clock.seconds += 9
    assert await look(launcher, [_worker(own)], graphs=()) == [], "given up or not, it has its time"
    assert len(_alive(own)) == 3
    clock.seconds += 1
    (ended,) = await ends(launcher, graphs=())
    assert (ended.worker, ended.asked) == (_worker(own), True)
    assert _alive(own) == []


async def test_a_graphs_failing_worker_holds_up_no_other(
    launch: Callable[..., SubprocessLauncher], ready: Path
) -> None:
    clock = HandClock()
    launcher = launch(clock=clock)
    first = await started_for(launcher, ready, DATABASE_GRAPH)
    own = await started_for(launcher, ready, OWN)
    for failures in (1, 2):
        os.kill(own["pid"], signal.SIGKILL)
        assert wait_for_end(own["pid"], 30)
        (ended,) = await ends(launcher, graphs=BOTH)
        assert (ended.graph, ended.asked, ended.failures, ended.wait) == (
            OWN,
            False,
            failures,
            timedelta(seconds=0.5 * failures),
        )
        assert "signal 9" in ended.reason
        assert await look(launcher, graphs=BOTH) == []
        assert launcher.graphs == {DATABASE_GRAPH}, "it waits its time"
        clock.seconds += ended.wait.total_seconds()
        own = await started_for(launcher, ready, OWN)
    os.kill(first["pid"], signal.SIGKILL)
    assert wait_for_end(first["pid"], 30)
    (ended,) = await ends(launcher, graphs=BOTH)
    assert (ended.worker, ended.failures) == (_worker(first), 1), "each graph's failures are its own"
    clock.seconds += 61
    os.kill(own["pid"], signal.SIGKILL)
    assert wait_for_end(own["pid"], 30)
    (ended,) = await ends(launcher, graphs=(OWN,))
    assert (ended.failures, ended.wait) == (0, timedelta(0)), "one that ran well starts anew"
    assert launcher.graphs == {OWN}
    await asyncio.to_thread(ready.read_text)


async def test_a_worker_that_the_machine_does_not_let_start_is_told_of_and_holds_up_no_other(
    tmp_path: Path, ready: Path
) -> None:
    launcher = launcher_of(tmp_path / "data", ready)
    workers = tmp_path / "data" / "workers"
    workers.parent.mkdir()
    workers.write_text("in the way")
    ended = await ends(launcher, graphs=BOTH)
    assert [(one.graph, one.failures) for one in ended] == [(DATABASE_GRAPH, 1), (OWN, 1)]
    assert "could not be started" in ended[0].reason
    await launcher.stop()


async def test_a_stop_ends_them_all(launch: Callable[..., SubprocessLauncher], ready: Path) -> None:
    launcher = launch(mode="clean")
    reports = [await started_for(launcher, ready, graph) for graph in BOTH]
    await launcher.stop()
    assert [_alive(report) for report in reports] == [[], []]


async def test_the_log_of_a_worker_that_runs_stays_however_many_come_after_it(
    launch: Callable[..., SubprocessLauncher], ready: Path, tmp_path: Path
) -> None:
    launcher = launch()
    shared = await started_for(launcher, ready, DATABASE_GRAPH)
    logs = tmp_path / "data" / "logs"
    for number in range(30):
        (logs / f"worker-{number}.log").touch()
    own = await started_for(launcher, ready, OWN)
    left = {log.name for log in logs.iterdir()}
    assert {f"worker-{_worker(one)}.log" for one in (shared, own)} <= left
    assert len(left) == 21
