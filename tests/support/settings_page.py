"""`docs/settings.md`, made from the classes with the settings: `python -m tests.support.settings_page` writes it."""

import ast
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr
from pydantic_core import PydanticUndefined

import service.settings
import workers.settings
from service.domain.parameters import RANGES, SESSION_DEFAULTS, SystemParameters

PAGE: Final = Path(__file__).parents[2] / "docs" / "settings.md"
_HEAD: Final = """\
# Settings

`python -m tests.support.settings_page` makes this page from the source; `make test` fails if the two differ.

**Your own servers.** `make serve` and `tidefill serve` run everything on one machine. To use yours, set variables:

| to use | set |
|---|---|
| your Postgres, 15 or newer, as meta store and state store | `TIDEFILL_DATABASE_URL`; its login needs `CREATEROLE` |
| another Postgres as state store | `TIDEFILL_STATE_STORE_URL` |
| a Spark cluster | `TIDEFILL_SPARK_MASTER` (`local[*]` by default): see below |
| another address than loopback | `TIDEFILL_HOST`, which then needs `TIDEFILL_API_TOKEN` or `TIDEFILL_OIDC_ISSUER` |

The service creates logins for users' statements, which needs `CREATEROLE` (`ALTER ROLE app CREATEROLE`). `tidefill
prepare`, run once after the installation, halves the start time of workers; the image includes it. `helm/tidefill`
deploys service, worker and migrations on Kubernetes.

**A Spark cluster.** `TIDEFILL_SPARK_MASTER` is `spark://host:7077`, `k8s://https://..` or `yarn` (with
`HADOOP_CONF_DIR`), and the worker is the driver, in client mode. `TIDEFILL_SPARK_CONF` has the settings, for example
`{"spark.driver.host": "10.0.0.5", "spark.cores.max": "8", "spark.default.parallelism": "8"}`. What a cluster needs:

- Every executor has the worker's Python, with tidefill and its packages (`pip install 'tidefill[workers]'`), at the
  same path. No code is shipped. On Kubernetes the image of the worker serves both: `python -m workers.executor` in it
  starts an executor. The chart sets all of this with `worker.profiles.<profile>.executors`.
- Executors reach the driver (`spark.driver.host`), the state store and the databases that tables follow. The embedded
  server listens to loopback only. The state store's login travels to the executors. `spark.authenticate` and
  `spark.network.crypto.enabled` protect it.
- `spark.default.parallelism` is the number of actors of a new job. Without it, it is the number of cores that had
  registered when the worker started.

A lost executor ends the epoch, and recovery repeats it from the last committed one. Therefore a task runs once, and
`spark.task.maxFailures`, `spark.speculation` and the like cannot be changed. A worker whose application is removed by
the cluster is replaced. Tests run a standalone cluster and executors on Kubernetes; YARN is untested.

**Secrets from files.** `TIDEFILL_SECRETS_DIR` names a directory. Its files have the names of variables in lower case
(`tidefill_database_url`, `tidefill_api_token`, ..). A variable that is set takes precedence over its file.
"""
_SERVICE: Final = """
## Environment of the service

The service reads these once at its start. All are optional: with none set, `tidefill serve` runs everything itself.
"""
_WORKER: Final = """
## Environment of a worker

The service sets these for the workers that it starts. Set them for workers that you start, as the chart does. The
service passes `TIDEFILL_SPARK_CONF` of its own environment on to its workers.
"""
_SYSTEM: Final = """
## System parameters

These apply to the whole service and change at run time: `ALTER SYSTEM SET name = value`, or
`PATCH /v1/system-parameters`. `DEFAULT` sets the built-in value, `SHOW PARAMETERS` lists all. A change takes effect
with the next barrier.
"""
_SESSION: Final = """
## Session variables

These apply to one session: `SET name = value`, or the `session` map of `POST /v1/sql`. `docs/sql.md` describes them.
"""


def page() -> str:
    """Return the page's text."""
    parameters, texts = SystemParameters(), _texts(SystemParameters)
    system = (
        (name, str(value).lower(), "{} to {}".format(*RANGES[name]) if name in RANGES else "", texts[name])
        for name, value in asdict(parameters).items()
    )
    return "".join(
        (
            _HEAD,
            *(_SERVICE, _environment(service.settings.Settings)),
            *(_WORKER, _environment(workers.settings.Settings)),
            *(_SYSTEM, _table(("parameter", "default", "values", "meaning"), system)),
            *(_SESSION, _table(("variable", "default"), sorted(SESSION_DEFAULTS.items()))),
        )
    )


def _environment(settings: Any) -> str:
    texts = _texts(settings)
    fields = settings.model_fields.items()
    return _table(
        ("variable", "default", "meaning"),
        ((f"TIDEFILL_{name.upper()}", _default(field), texts[name]) for name, field in fields),
    )


def _default(field: Any) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    assert not isinstance(value, SecretStr), "a secret has no default"
    return "" if value is None or value in ({}, []) else str(value)


def _texts(kind: type) -> Mapping[str, str]:
    """Return the text below each annotated name of a class, which Python itself does not keep."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    last = ""
    for node in body.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                last, found[name] = name, ""
            case ast.Expr(value=ast.Constant(value=str(text))) if last:
                found[last] = " ".join(inspect.cleandoc(text).split())
            case _:
                last = ""
    return found


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (
        [f"`{name}`", f"`{default}`" if default else "", *(text.replace("|", "\\|") for text in rest)]
        for name, default, *rest in rows
    )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)).join("\n\n")


if __name__ == "__main__":
    PAGE.write_text(page())
