"""Logs of service and worker as a file receives them."""

import subprocess
import sys

import pytest

SERVICE = """
from service.telemetry.log import configure, logger
configure(level="{level}", form="console")
log = logger("x")
"""
WORKER = """
import structlog
from pydantic import SecretStr
from workers import bootstrap
from workers.settings import Settings
bootstrap._configure_log(
    Settings(worker_token=SecretStr("x"), state_store_url=SecretStr("x"), log_level="{level}", log_format="console")
)
log = structlog.get_logger("x")
"""
LINES = "log.debug('of debug')\nlog.info('of info')\nlog.warning('of warning')"


def logged(program: str, level: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program.format(level=level) + LINES], capture_output=True, text=True, check=True
    ).stderr


@pytest.mark.parametrize("program", [SERVICE, WORKER], ids=["service", "worker"])
@pytest.mark.parametrize(("level", "expected"), [("debug", 3), ("info", 2), ("WARNING", 1)])
def test_u9_the_log_level_is_kept_and_a_file_has_no_colours(program: str, level: str, expected: int) -> None:
    text = logged(program, level)
    assert len(text.splitlines()) == expected
    assert "\x1b" not in text
