"""Logs of service and worker as a file receives them."""

import subprocess
import sys

import pytest

SERVICE = """
from service.telemetry.log import configure, logger
def log_of(level):
    configure(level=level, form="console")
    return logger("x")
"""
WORKER = """
import structlog
from pydantic import SecretStr
from workers import bootstrap
from workers.settings import Settings
def log_of(level):
    secrets = {"worker_token": SecretStr("x"), "state_store_url": SecretStr("x")}
    bootstrap._configure_log(Settings(**secrets, log_level=level, log_format="console"))
    return structlog.get_logger("x")
"""
LINES = """
for level in ("debug", "info", "WARNING"):
    log = log_of(level)
    log.debug("of debug")
    log.info("of info")
    log.warning("of warning")
    print("--", file=sys.stderr)
"""


def logged(program: str) -> str:
    """Return what a process has logged at each level. Most of its time goes into its imports."""
    code = f"import sys\n{program}{LINES}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize("program", [SERVICE, WORKER], ids=["service", "worker"])
def test_u9_the_log_level_is_kept_and_a_file_has_no_colours(program: str) -> None:
    text = logged(program)
    assert [len(part.strip().splitlines()) for part in text.split("--\n")[:-1]] == [3, 2, 1]
    assert "\x1b" not in text
