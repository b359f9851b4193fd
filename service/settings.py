"""Every environment variable of the service, read once by `service.bootstrap`. The worker's are in `workers.settings`.

A secret may come from a file instead of a variable: `TIDEFILL_SECRETS_DIR` names a directory with files called as the
fields (`tidefill_database_url`, ..), which is how Kubernetes mounts them and how the service hands its worker what it
must not put into an environment that queries could read.
"""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

LogLevel = Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(str.lower)]


class Settings(BaseSettings):
    """All optional: with none set `tidefill serve` runs everything by itself under `data_dir`."""

    model_config = SettingsConfigDict(env_prefix="TIDEFILL_", extra="ignore", frozen=True)

    database_url: SecretStr | None = None
    """The meta store, `postgresql://user:password@host:port/database`; unset, it starts an embedded server."""
    state_store_url: SecretStr | None = None
    """The state store; unset, it is the same database as the meta store."""
    data_dir: Path = Path(".tidefill")
    """Where the embedded Postgres, the worker's logs and its secrets live."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(default=8700, ge=0, le=65535)
    """The port to listen on; 0 takes a free one."""
    api_token: SecretStr | None = None
    """Needed to bind to anything but loopback; then every call but the probes carries it as a bearer token."""
    allowed_origins: list[str] = []
    """Origins whose web pages may call the service, as JSON (`["https://grafana.example"]`)."""
    source_hosts: list[str] | None = None
    """The hosts that sources and health probes may be at, as JSON: names (`*.db.example`), addresses and networks
    (`["10.0.0.0/8"]`). Unset permits all but link-local, metadata and multicast addresses. `docs/access.md`.
    """
    worker_token: SecretStr | None = None
    """The worker API's own token; unset, it makes one up for the worker that the service starts itself."""
    public_url: str | None = None
    """How workers reach the service; unset, it is derived from `host` and `port`."""

    launcher: Literal["subprocess", "none"] = "subprocess"
    """`none`: workers are started by somebody else (Kubernetes)."""
    spark_master: str = "local[*]"
    """The Spark master of the worker that the service starts."""
    serverless_spark_master: str | None = None
    """The Spark master, hence the task slots, of the worker of a serverless job; unset, it is that of the others."""
    serverless_spark_conf: dict[str, str] | None = None
    """Spark settings of such a worker, as JSON (`{"spark.driver.memory": "2g"}`), instead of TIDEFILL_SPARK_CONF."""
    log_format: Literal["console", "json"] = "console"
    """How the service logs."""
    log_level: LogLevel = "info"
    """Of the service, and of the workers that it starts."""
    dml_waiting_max: int = Field(default=20_000, gt=0)
    """How many statements may wait for an epoch, as they do while a worker restarts; more are refused with 503."""
    dml_waiting_bytes_max: int = Field(default=256 << 20, gt=0)
    """How many bytes of statements may wait."""
    body_size_max: int = Field(default=1 << 20, gt=0)
    """The largest JSON body of a statement in bytes. Other calls take at most 131,072, as does a statement besides its
    text. Bulk loads are streamed and have no such limit.
    """
    connections_max: int = Field(default=2_000, gt=0)
    """How many connections there may be; the one that is idle for longest makes room for the next."""
    head_seconds: float = Field(default=10.0, gt=0)
    """How long the head of a request may take to arrive, and the rest of a body that was answered before its end."""
    stalled_seconds: float = Field(default=60.0, gt=0)
    """How long a client may read nothing of what it is sent."""
    streams_max: int = Field(default=100, ge=0)
    """How many streams of events there may be."""
    calls_max: int = Field(default=1_000, gt=0)
    """How many calls of users may be in progress, those that wait for a statement too."""
    uploads_max: int = Field(default=500, gt=0)
    """How many calls of users may be sending their bodies, never more than half of TIDEFILL_CALLS_MAX. When another one
    comes, the slowest of those that were waited for longer than a second is answered 408. A JSON body has 60 s, those
    of bulk loads have the limits below.
    """
    result_bytes_max: int = Field(default=64 << 20, gt=0)
    """The largest result of a query in bytes: the texts of its values and 24 for each value."""
    queries_max: int = Field(default=8, gt=0, le=100)
    """How many queries of users run at the same time; each has a connection to the state store."""
    queries_waiting_max: int = Field(default=100, ge=0)
    """How many more may wait, up to 10 s, until one of them ends."""
    loads_max: int = Field(default=4, gt=0, le=100)
    """How many bulk loads and INSERT .. SELECT may be staged at the same time; each has a connection to the state
    store. A load is staged once its whole body is here. One more waits up to 10 s for its turn.
    """
    load_idle_seconds: float = Field(default=30.0, gt=0)
    """How long the body of a bulk load may bring nothing."""
    load_rate_min: int = Field(default=1 << 10, gt=0)
    """How many bytes a second the body of a bulk load must bring. One that is slower uses up the time for which it may
    bring nothing; bytes that come faster give it back.
    """
    load_files_bytes_max: int = Field(default=16 << 30, gt=0)
    """How many bytes of bodies of bulk loads may be in files in TMPDIR at the same time. One that has more by itself is
    refused with 422, one that does not fit in beside others with 503.
    """
    load_memory_max: int = Field(default=512 << 20, ge=256 << 20)
    """How many bytes of memory the process that reads a body of Arrow, Parquet or NDJSON may take; there are two."""
    load_seconds_max: float = Field(default=3600.0, gt=0)
    """How long the body of a bulk load may take as a whole."""


def read_settings() -> Settings:
    """Read the environment. Raises pydantic.ValidationError, which names the variable."""
    secrets = os.environ.get("TIDEFILL_SECRETS_DIR")
    return Settings(_secrets_dir=secrets) if secrets else Settings()  # pyright: ignore[reportCallIssue] - pydantic-settings' own keyword
