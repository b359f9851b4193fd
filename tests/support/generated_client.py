"""The client that openapi-python-client makes of the document, as a package."""

import importlib
import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import cast

from service.api.app import create_app
from service.operations.world import World
from tests.support.http import OPEN, Checks

PACKAGE = "tidefill_client"


@contextmanager
def generated_client(place: Path) -> Generator[None]:
    """Make the package in an empty directory, from which it can be imported meanwhile. A warning is an error."""
    document = create_app(cast("World", None), settings=OPEN, ready=Checks()).openapi()
    (place / "openapi.json").write_text(json.dumps(document))
    # Its hooks would put the sources in form, and complain where the formatter is not in the path.
    (place / "config.yaml").write_text("post_hooks: []\n")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"]
    options = ["--path", "openapi.json", "--output-path", PACKAGE, "--config", "config.yaml"]
    done = subprocess.run([*command, *options], cwd=place, capture_output=True, text=True, check=False)
    assert (done.returncode, "arning" in done.stdout + done.stderr) == (0, False), done.stdout + done.stderr
    sys.path.insert(0, str(place))
    try:
        yield
    finally:
        sys.path.remove(str(place))
        for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
            del sys.modules[name]


def client_module(name: str) -> ModuleType:
    """Import a module of the package: `client`, `models`, `types`, `api.jobs.list_jobs`."""
    return importlib.import_module(f"{PACKAGE}.{name}")
