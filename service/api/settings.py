"""What the doors need of the settings, handed in by bootstrap."""

from dataclasses import dataclass, field

from pydantic import SecretStr


@dataclass(frozen=True, slots=True)
class ReadLogin:
    """How people's own tools log in to read the public views, at the server as the service reaches it."""

    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """`api_token` None leaves `/v1` open, which bootstrap allows on loopback only. The worker API always has a token.

    Pages of `allowed_origins`, as `service.api.origins.origin_of` returns them, may call the service from a browser.
    `body_size_max` is in bytes and holds for JSON bodies; bulk loads are streamed and have no such limit.
    """

    worker_token: SecretStr
    api_token: SecretStr | None = None
    body_size_max: int = 1 << 20
    allowed_origins: tuple[str, ...] = ()
    read_login: ReadLogin | None = None
    calls_max: int = 1_000
    streams_max: int = 100
