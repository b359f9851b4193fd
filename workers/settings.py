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
    worker_id: str | None = None
    graph: int = 1
    worker_token: SecretStr
    state_store_url: SecretStr
    """The login that owns the versioned tables."""
    spark_master: str = "local[*]"
    spark_conf: dict[str, str] = Field(default_factory=dict)
    """More Spark settings, as JSON; they win over the worker's own."""
    log_format: Literal["console", "json"] = "json"
    log_level: LogLevel = "info"


def read_settings() -> Settings:
    """Read the environment and the secrets' directory. Raises pydantic.ValidationError, which names the variable."""
    values: dict[str, Any] = {}
    secrets = os.environ.get("TIDEFILL_SECRETS_DIR")
    if secrets:
        values["_secrets_dir"] = secrets
    return Settings(**values)
