"""The program `helm`: the machine's, else one built from its sources into `.cache/bin`."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

VERSION: Final = "v3.18.4"
_SOON: Final = ("-gcflags=all=-N -l", "-ldflags=-s -w")
"""It renders a chart a few dozen times, which does not repay what its compiler's optimizations cost."""
_ROOT: Final = Path(__file__).parents[2]


_BUILT: Final = _ROOT / ".cache" / "bin" / "helm"
_building: "list[subprocess.Popen[bytes]]" = []


def begin_building() -> None:
    """Build the program where there is none, beside the tests that need none: it takes minutes."""
    go = shutil.which("go")
    if shutil.which("helm") or _BUILT.exists() or go is None:
        return
    _BUILT.parent.mkdir(parents=True, exist_ok=True)
    command = [go, "install", "-p", "1", *_SOON, f"helm.sh/helm/v3/cmd/helm@{VERSION}"]
    _building.append(subprocess.Popen(command, env={**os.environ, "GOBIN": str(_BUILT.parent)}))


def find_helm() -> Path | None:
    """Return the program, once it is built; None where there is neither helm nor Go."""
    if found := shutil.which("helm"):
        return Path(found)
    if not _BUILT.exists() and not _building:
        begin_building()
    for build in _building:
        assert build.wait() == 0, "helm could not be built"
    return _BUILT if _BUILT.exists() else None
