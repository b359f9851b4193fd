"""The program `plane`: built from the Go module of this directory into `.cache/bin`, which is kept between runs.

The build takes five minutes of two processors and 4 GB of caches. No test begins it by itself: the variable
`TIDEFILL_TEST_CONTROL_PLANE=build` asks for it. Tests that need the program are skipped where it is not there.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

ASKED: Final = "TIDEFILL_TEST_CONTROL_PLANE"
VERSION: Final = "1.36.3"
ABSENT: Final = f"there is no .cache/bin/plane; {ASKED}=build builds it, which takes minutes"
_BUILT: Final = Path(__file__).parents[3] / ".cache" / "bin" / "plane"


def build_if_asked() -> None:
    """Build the program where it is not there, if the environment asks for it and there is Go."""
    go = shutil.which("go")
    if os.environ.get(ASKED) != "build" or go is None:
        return
    _BUILT.parent.mkdir(parents=True, exist_ok=True)
    # Several runs of pytest share the directory: one builds, and the others wait.
    with _BUILT.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _BUILT.exists():
            _build(go)


def find_plane() -> Path | None:
    """Return the program; None where it was not built."""
    return _BUILT if _BUILT.exists() else None


def _build(go: str) -> None:
    """Build under another name first: a build that is interrupted leaves no program."""
    made = _BUILT.with_suffix(".new")
    version = "k8s.io/component-base/version"
    major, minor, _ = VERSION.split(".")
    told = f"-s -w -X {version}.gitVersion=v{VERSION} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    subprocess.run(
        [go, "build", "-p", "1", "-trimpath", "-buildvcs=false", "-ldflags", told, "-o", str(made), "."],
        cwd=Path(__file__).parent,
        env={**os.environ, "CGO_ENABLED": "0"},
        preexec_fn=lambda: os.nice(10),
        check=True,
    )
    made.replace(_BUILT)
