"""Classes that were laid out once are mapped by every JVM of a worker; what does not fit is passed over."""

import subprocess
import sys
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from workers.spark import gateway
from workers.spark.session import CONF

pytestmark = pytest.mark.spark


@contextmanager
def jvm(conf: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Generator["subprocess.Popen[bytes]"]:
    """Run a JVM without a session."""
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        monkeypatch.setenv(name, "")
    process = gateway.start_gateway({**CONF, **conf}, folder / "connection")
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def mapped(process: "subprocess.Popen[bytes]") -> str:
    return Path(f"/proc/{process.pid}/maps").read_text()


@pytest.fixture(scope="module")
def classes() -> Path:
    """Where they are laid out, as `make test` has it done."""
    where = gateway.laid_out(CONF)
    if not where.exists():
        subprocess.run([sys.executable, "-m", "workers.preparation"], check=True)
    return where


def test_a_jvm_maps_what_was_laid_out(classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with jvm({}, tmp_path, monkeypatch) as process:
        assert str(classes) in mapped(process)


@pytest.mark.soak
@pytest.mark.parametrize("laid_out", ["for other jars", "never"])
def test_what_does_not_fit_is_passed_over(
    laid_out: str, classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "other.jar"
    with zipfile.ZipFile(jar, "w") as written:
        written.writestr("empty", "")
    conf = {"spark.driver.extraClassPath": str(jar)}
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    misplaced = gateway.laid_out({**CONF, **conf})
    misplaced.parent.mkdir(parents=True)
    if laid_out == "never":
        misplaced.write_bytes(b"something else" * 10_000)
    else:
        misplaced.symlink_to(classes)
    with jvm(conf, tmp_path, monkeypatch) as process:
        assert process.poll() is None


@pytest.mark.soak
def test_a_jvm_with_another_memory_starts(classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One so large that addresses are longer: what was laid out speaks of shorter ones."""
    assert classes.exists()
    with jvm({"spark.driver.memory": "40g"}, tmp_path, monkeypatch) as process:
        assert process.poll() is None
