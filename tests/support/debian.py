"""Programs of this machine, else of Debian's packages, unpacked in `.cache/bin`."""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_BIN: Final = Path(__file__).parents[2] / ".cache" / "bin"
LIBRARIES: Final = _BIN / "lib"
"""Where the libraries of unpacked programs are: LD_LIBRARY_PATH."""
_PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "prometheus": ("prometheus",),
    "promtool": ("prometheus",),
    "pgbouncer": ("pgbouncer", "libc-ares2", "libevent-2.1-7"),
}


def find_program(name: str) -> Path | None:
    """Return the program; None where it is not installed and no package can be had."""
    if found := shutil.which(name):
        return Path(found)
    if not (_BIN / name).exists():
        _fetch(name)
    return _BIN / name if (_BIN / name).exists() else None


def _fetch(name: str) -> None:
    """Unpack the packages without installing them, which would need root and start a server."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return
    packages = _PACKAGES[name]
    with tempfile.TemporaryDirectory() as place:
        got = subprocess.run(
            ["apt-get", "download", *packages], cwd=place, check=False, capture_output=True, timeout=300
        )
        files = list(Path(place).glob("*.deb"))
        if got.returncode != 0 or len(files) != len(packages):
            return
        for file in files:
            subprocess.run(["dpkg-deb", "-x", str(file), place], check=True, timeout=300)
        LIBRARIES.mkdir(parents=True, exist_ok=True)
        for library in Path(place).glob("usr/lib/*/*.so.*"):
            shutil.move(library, LIBRARIES / library.name)
        (program,) = Path(place).glob(f"usr/*bin/{name}")
        shutil.move(program, _BIN / name)
