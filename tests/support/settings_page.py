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

Made from the source by `python -m tests.support.settings_page`; `make test` fails where the two differ.

**Your own servers.** `make serve` and `tidefill serve` run everything on one machine. Variables name what you have:

| to use | set |
|---|---|
| your Postgres, 15 or newer, as meta store and state store | `TIDEFILL_DATABASE_URL`; its login needs `CREATEROLE` |
| another Postgres as state store | `TIDEFILL_STATE_STORE_URL` |
| a Spark cluster | `TIDEFILL_SPARK_MASTER` (`local[*]` by default): see below |
| another address than loopback | `TIDEFILL_HOST`, which then needs `TIDEFILL_API_TOKEN` |

`CREATEROLE` (`ALTER ROLE app CREATEROLE`) is for the logins of users' statements. `tidefill prepare`, once after an
installation that is to stay, halves the time in which a worker starts; the image has it
done. `helm/tidefill` deploys service, worker and migrations on Kubernetes.

**A Spark cluster.** `TIDEFILL_SPARK_MASTER` is `spark://host:7077`, `k8s://https://..` or `yarn` (with
`HADOOP_CONF_DIR`), and the worker is the driver, in client mode. `TIDEFILL_SPARK_CONF` has the settings, for example
`{"spark.driver.host": "10.0.0.5", "spark.cores.max": "8", "spark.default.parallelism": "8"}`. What a cluster needs:

- Every executor has the worker's Python, with tidefill and its packages (`pip install 'tidefill[workers]'`), at the
  same path. No code is shipped. On Kubernetes that is an image with Spark's entrypoint and the files of the worker's
  image (`spark.kubernetes.container.image`).
- Executors reach the driver (`spark.driver.host`), the state store and the databases that tables follow. The embedded
  server listens to loopback only. The state store's login travels to the executors. `spark.authenticate` and
  `spark.network.crypto.enabled` protect it.
- `spark.default.parallelism` is the number of actors of a new job. Without it, it is the number of cores that had
  registered when the worker started.

A lost executor ends the epoch, and recovery repeats it from the last committed one. Therefore a task runs once, and
`spark.task.maxFailures`, `spark.speculation` and the like cannot be changed. A worker whose application is removed by
the cluster is replaced. Tests run a standalone cluster; Kubernetes and YARN are untested.

**A secret from a file.** `TIDEFILL_SECRETS_DIR` names a directory with files called as the variables in lower case
(`tidefill_database_url`, `tidefill_api_token`, ..). A variable that is set wins over its file.
"""
_SERVICE: Final = """
## Environment of the service

Read once when the service starts. All are optional: with none set, `tidefill serve` runs everything by itself.
"""
_WORKER: Final = """
## Environment of a worker

A worker that the service starts gets these from the service; set them for workers that you start, as the chart does.
`TIDEFILL_SPARK_CONF` of the service's environment is handed on.
"""
_SYSTEM: Final = """
## System parameters

Of the whole service, at run time: `ALTER SYSTEM SET name = value`, or `PATCH /v1/system-parameters`; `DEFAULT` sets the
built-in value, `SHOW PARAMETERS` lists all. A change holds from the next barrier on.
"""
_SESSION: Final = """
## Session variables

Of one session: `SET name = value`, or the `session` map of `POST /v1/sql`. `docs/sql.md` says what they do.
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
