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
    """The meta store, `postgresql://user:password@host:port/database`. Unset, an embedded server is started."""
    state_store_url: SecretStr | None = None
    """The state store. Unset, it is the same database as the meta store."""
    data_dir: Path = Path(".tidefill")
    """The directory of the embedded Postgres, the worker's logs and its secrets."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = Field(default=8700, ge=0, le=65535)
    """The port to listen on. 0 takes a free one."""
    api_token: SecretStr | None = None
    """The token of an admin, who makes the other tokens (`docs/access.md`). Beyond loopback, this or an OIDC issuer is
    required.
    """
    oidc_issuer: str | None = None
    """The https URL of an OIDC issuer whose JWTs are accepted as bearer tokens (`docs/access.md`)."""
    oidc_audience: str | None = None
    """The audience (`aud`) for which these JWTs must be made. Required with TIDEFILL_OIDC_ISSUER."""
    oidc_role_claim: str = "groups"
    """The claim of these JWTs that gives the role: a text or a list. Dots lead into objects (`realm_access.roles`)."""
    oidc_roles: dict[str, str] | None = None
    """The role of each value of the claim, as JSON (`{"sre": "operator"}`). Required with TIDEFILL_OIDC_ISSUER."""
    allowed_origins: list[str] = []
    """Origins whose web pages may call the service, as JSON (`["https://grafana.example"]`)."""
    root_path: str = Field(default="", pattern=r"^(/[A-Za-z0-9._~-]+)*$")
    """The path below which a proxy serves the service, such as `/tidefill`. The proxy may pass it on or take it off."""
    source_hosts: list[str] | None = None
    """The permitted hosts of sources and health probes, as JSON: names (`*.db.example`), addresses and networks
    (`["10.0.0.0/8"]`). Unset permits all except link-local, metadata and multicast addresses (`docs/access.md`).
    """
    lake_roots: list[str] | None = None
    """The folders and the places in object stores under which Delta tables may lie, as JSON (`["/lake", "s3://bucket"]`).
    Unset permits all except folders of the system and of Postgres servers.
    """
    worker_token: SecretStr | None = None
    """The token of the worker API. Unset, the service generates one for the workers that it starts."""
    public_url: str | None = None
    """The URL at which workers reach the service. Unset, it is derived from `host` and `port`."""

    launcher: Literal["subprocess", "kubernetes", "none"] = "subprocess"
    """`subprocess`: the service starts workers as its processes. `kubernetes`: the leading service creates a pod for
    each (`docs/operations.md`). `none`: workers are started elsewhere.
    """
    kubernetes_templates: str = "tidefill-worker"
    """The ConfigMap with the pod templates of workers. Its name begins the names of the pods."""
    kubernetes_start_seconds: float = Field(default=600.0, gt=0)
    """How long a pod may take until its worker registers, the wait for a new node included."""
    kubernetes_namespace: str | None = None
    """The namespace of this ConfigMap and of the pods. Unset, it is the one of the service's own pod."""
    kubernetes_url: str = "https://kubernetes.default.svc"
    """The URL of the Kubernetes API."""
    kubernetes_account_dir: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    """The directory with `token`, `ca.crt` and `namespace` of the service account that creates pods."""
    spark_master: str = "local[*]"
    """The Spark master of the worker that the service starts."""
    serverless_spark_master: str | None = None
    """The Spark master (with its task slots) of workers of serverless jobs. Unset, as for other workers."""
    serverless_spark_conf: dict[str, str] | None = None
    """Spark settings of these workers, as JSON (`{"spark.driver.memory": "2g"}`), instead of TIDEFILL_SPARK_CONF."""
    log_format: Literal["console", "json"] = "console"
    """The format of the service's log: `console` or `json`."""
    log_level: LogLevel = "info"
    """The lowest level that the service, and the workers that it starts, log."""
    otel: bool = False
    """`on`: traces are sent to an OpenTelemetry collector (`docs/operations.md`). Its address is the standard variable
    OTEL_EXPORTER_OTLP_ENDPOINT. Needs `pip install 'tidefill[otel]'`.
    """
    otel_ratio: float = Field(default=0.01, ge=0, le=1)
    """The share of epochs and requests that are traced. Jobs, epochs with a mutation and slow ones always are."""
    dml_waiting_max: int = Field(default=20_000, gt=0)
    """How many statements may wait for an epoch, as while a worker restarts. They are shared out among callers, so one
    caller has half of them at most. Others are refused with 503.
    """
    dml_waiting_bytes_max: int = Field(default=256 << 20, gt=0)
    """How many bytes these statements may have together. They are shared out likewise."""
    body_size_max: int = Field(default=1 << 20, gt=0)
    """The largest JSON body of a statement in bytes. Other calls, and all of a statement except its text, have at most
    131,072. Bulk loads have other limits.
    """
    connections_max: int = Field(default=2_000, gt=0)
    """How many connections may be open. For a new one, that is closed whose head, or whose body without a valid token,
    was awaited longest, or else the one that is idle for longest.
    """
    head_seconds: float = Field(default=10.0, gt=0)
    """How long the head of a request may take to arrive, and the rest of a body that is already answered."""
    stalled_seconds: float = Field(default=60.0, gt=0)
    """How long a client may read nothing of its answer."""
    streams_max: int = Field(default=100, ge=0)
    """How many event streams may be open."""
    calls_max: int = Field(default=1_000, gt=0)
    """How many calls of users may be in progress, including those that wait for a statement."""
    uploads_max: int = Field(default=500, gt=0)
    """How many calls may be sending their bodies, at most half of TIDEFILL_CALLS_MAX. For another one, the slowest of
    the caller with the most that was awaited for more than a second is answered 408. A JSON body has 60 s; the limits
    of bulk loads are below.
    """
    result_bytes_max: int = Field(default=64 << 20, gt=0)
    """The largest result of a query in bytes: its values in memory, 24 for each value and each element of an array, and
    240 for each list in one. Results that clients have not taken yet may have eight times as much together, those of
    one caller half of it.
    """
    queries_max: int = Field(default=8, gt=0, le=100)
    """How many queries of users may run at the same time. Each has a connection to the state store."""
    queries_waiting_max: int = Field(default=100, ge=0)
    """How many further queries may wait, up to 10 s each."""
    loads_max: int = Field(default=4, gt=0, le=100)
    """How many bulk loads and INSERT .. SELECT may be staged at the same time, each by a connection to the state store.
    A load is staged after its whole body was received. Further ones wait up to 10 s for a turn.
    """
    load_idle_seconds: float = Field(default=30.0, gt=0)
    """How long the body of a bulk load may pause."""
    load_rate_min: int = Field(default=1 << 10, gt=0)
    """How many bytes per second the body of a bulk load must bring. A slower one uses up the time for pauses, a
    faster one restores it.
    """
    load_files_bytes_max: int = Field(default=16 << 30, gt=0)
    """How many bytes the bodies of bulk loads, in files in TMPDIR, and the rows of INSERT .. SELECT may have together
    until they are in their tables, and those of one caller half of them. A larger load is refused with 422, one that
    does not fit in beside others with 503.
    """
    load_memory_max: int = Field(default=512 << 20, ge=256 << 20)
    """The memory in bytes of each of the three processes that read bodies of Arrow, Parquet and NDJSON."""
    load_seconds_max: float = Field(default=3600.0, gt=0)
    """How long the body of a bulk load may take in total."""

    @property
    def secured(self) -> bool:
        """Whether callers need a token. If not, they are on this machine, because the service listens to no others."""
        return self.api_token is not None or self.oidc_issuer is not None


def read_settings() -> Settings:
    """Read the environment. Raises pydantic.ValidationError, which names the variable."""
    secrets = os.environ.get("TIDEFILL_SECRETS_DIR")
    return Settings(_secrets_dir=secrets) if secrets else Settings()  # pyright: ignore[reportCallIssue] - pydantic-settings' own keyword
