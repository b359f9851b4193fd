"""The settings of the API, passed in by bootstrap."""

from dataclasses import dataclass

from pydantic import SecretStr


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The settings of the API. `api_token` None leaves `/v1` open, which bootstrap allows on loopback only. The worker
    API always has a token.

    Pages of `allowed_origins`, in the form of `service.api.origins.origin_of`, may call the service from a browser.
    `body_size_max` is in bytes and applies to JSON bodies; bulk loads are streamed without such a limit.
    """

    worker_token: SecretStr
    api_token: SecretStr | None = None
    body_size_max: int = 1 << 20
    allowed_origins: tuple[str, ...] = ()
    calls_max: int = 1_000
    uploads_max: int = 500
    streams_max: int = 100
    unsent_bytes_max: int = 512 << 20
    """Of large results that clients have not taken yet."""

    @property
    def arriving_max(self) -> int:
        """How many bodies may be arriving: they take at most half of the calls' places."""
        return min(self.uploads_max, max(1, self.calls_max // 2))
