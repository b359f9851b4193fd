"""Every environment variable of a worker, read once by `workers.bootstrap`.

Secrets come from files in `TIDEFILL_SECRETS_DIR`, not from the environment: a view's query runs in this process's
executors.
"""

import os
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

LogLevel = Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(str.lower)]


class Settings(BaseSettings):
    """What a worker has to know. `worker_id` is chosen by the launcher, so that it can tell which process is which
    worker.
    """

    model_config = SettingsConfigDict(env_prefix="TIDEFILL_", extra="ignore", frozen=True)

    service_url: str = "http://127.0.0.1:8700"
    """Where the service is."""
    worker_id: str | None = None
    """Its name, unlike that of any other worker there ever was; unset, it makes one up."""
    graph: int = 1
    """The graph that it serves: 1 is the database graph, another one that of a serverless job."""
    worker_token: SecretStr
    """The worker API's token, as the service has it."""
    state_store_url: SecretStr
    """The login that owns the versioned tables."""
    spark_master: str = "local[*]"
    """The Spark master: local threads, or a cluster (`spark://..`, `k8s://..`)."""
    spark_conf: dict[str, str] = Field(default_factory=dict)
    """More Spark settings, as JSON; they win over the worker's own."""
    log_format: Literal["console", "json"] = "json"
    """How the worker logs."""
    log_level: LogLevel = "info"
    """From which level on."""


def read_settings() -> Settings:
    """Read the environment and the secrets' directory. Raises pydantic.ValidationError, which names the variable."""
    values: dict[str, Any] = {}
    secrets = os.environ.get("TIDEFILL_SECRETS_DIR")
    if secrets:
        values["_secrets_dir"] = secrets
    return Settings(**values)
