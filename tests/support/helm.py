"""The program `helm`: the machine's, else one built from its sources into `.cache/bin`."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

VERSION: Final = "v3.18.4"
_ROOT: Final = Path(__file__).parents[2]


def find_helm() -> Path | None:
    """Return the program, building it if need be (minutes, the first time); None where there is neither helm nor Go."""
    if found := shutil.which("helm"):
        return Path(found)
    built = _ROOT / ".cache" / "bin" / "helm"
    if built.exists():
        return built
    go = shutil.which("go")
    if go is None:
        return None
    built.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [go, "install", f"helm.sh/helm/v3/cmd/helm@{VERSION}"],
        check=True,
        env={**os.environ, "GOBIN": str(built.parent)},
    )
    return built
