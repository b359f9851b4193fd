"""Every environment variable of a worker, read once by `workers.bootstrap`.

Secrets come from files in `TIDEFILL_SECRETS_DIR` instead of the environment, because users' queries run in this
process's executors.
"""

import os
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

LogLevel = Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(str.lower)]


class Settings(BaseSettings):
    """The settings of a worker. The launcher chooses `worker_id`, so that it can match processes with workers."""

    model_config = SettingsConfigDict(env_prefix="TIDEFILL_", extra="ignore", frozen=True)

    service_url: str = "http://127.0.0.1:8700"
    """URL of the service."""
    worker_id: str | None = None
    """The worker's id, never reused. Unset, the worker generates a UUID."""
    graph: int = 1
    """The graph that the worker serves: 1 is the database graph, any other one that of a serverless job."""
    worker_token: SecretStr
    """The token of the worker API, the same as the service's."""
    state_store_url: SecretStr
    """The state store, under the login that owns the versioned tables."""
    spark_master: str = "local[*]"
    """The Spark master: local threads, or a cluster (`spark://..`, `k8s://..`, `yarn`)."""
    spark_conf: dict[str, str] = Field(default_factory=dict)
    """Further Spark settings, as JSON. They override the worker's own, except those by which a task runs once."""
    leave_seconds: float = Field(default=0.0, ge=0)
    """How long a worker goes on after SIGTERM while its successor starts: less than what its launcher grants it."""
    log_format: Literal["console", "json"] = "json"
    """The format of the worker's log: `console` or `json`."""
    log_level: LogLevel = "info"
    """The lowest level that the worker logs."""


def read_settings() -> Settings:
    """Read the environment and the secrets directory. Raises pydantic.ValidationError, which names the variable."""
    values: dict[str, Any] = {}
    secrets = os.environ.get("TIDEFILL_SECRETS_DIR")
    if secrets:
        values["_secrets_dir"] = secrets
    return Settings(**values)
