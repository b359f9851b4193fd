"""What a killed run left is cleared away by the next one, and nothing else."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.processes import state_of
from tests.support.run_directories import PREFIX, clear_abandoned, run_directory

LEFT = """
import subprocess, sys
from tests.support.run_directories import run_directory
with run_directory() as directory:
    wait = [sys.executable, "-c", "import signal; signal.pause()"]
    placed = {"TIDEFILL_DATA_DIR": f"{directory}/data"}
    for how in ({"cwd": directory}, {"env": placed}):
        print(subprocess.Popen(wait, stdout=subprocess.DEVNULL, **how).pid)
    print(directory, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_run_left_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TIDEFILL_TEST_FSYNC", "on")  # otherwise the directories are in memory
    with (
        run_directory() as mine,
        subprocess.Popen(
            [sys.executable, "-c", LEFT],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as run,
    ):
        assert run.stdout is not None
        *servers, directory = (run.stdout.readline().strip() for _ in range(3))
        (tmp_path / f"{PREFIX}of-a-user").mkdir()
        clear_abandoned(tmp_path)
        assert Path(directory).is_dir(), "its owner lives"
        run.kill()
        run.wait()
        clear_abandoned(tmp_path)
        assert sorted(tmp_path.iterdir()) == [mine, tmp_path / f"{PREFIX}of-a-user"]
        assert {state_of(int(pid)) for pid in servers} <= {None, "Z"}
