"""A demo that is ended from outside ends its service first, and removes what it has stored."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = """
import signal, sys, threading
from contextlib import contextmanager

# As in a terminal: what is started in the background, as tests may be, ignores an interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
for ending in (signal.SIGHUP, signal.SIGTERM):
    signal.signal(ending, signal.SIG_DFL)
from service.cli import app, stage

@contextmanager
def serving(folder, console):
    print(folder, flush=True)
    try:
        yield None
    finally:
        print("the service is ended", flush=True)

def run(stage, folder):
    print("up", flush=True)
    threading.Event().wait()

stage._serving = serving
app.app = lambda: sys.exit(stage.perform(run))
app.main()
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_it_leaves_nothing(ending: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", DEMO], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            assert process.stdout.readline() == "up\n"
            assert folder.is_dir()
            process.send_signal(ending)
            assert process.communicate()[0] == "the service is ended\n"
            assert process.returncode == 130
            assert not folder.exists()
        finally:
            process.kill()
