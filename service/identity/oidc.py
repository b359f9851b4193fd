"""Check JWTs with the public keys of their issuer, which are read where its discovery document says.

The keys are kept for `KEYS_KEPT_SECONDS`. A token of an unknown key has them read again, but not within
`REREAD_SECONDS`, so that invented keys cause no load. Keys that are known stay in use while the issuer is away.
"""

import asyncio
import warnings
from collections.abc import Mapping
from typing import Any, Final

import httpx
from joserfc import jws, jwt
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey
from pydantic import TypeAdapter

from service.domain.claims import OidcRules, bearer, is_trusted
from service.domain.errors import Unavailable
from service.ports.audit import Asker
from service.ports.clock import Clock
from service.telemetry.log import logger

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""Signatures by a private key that only the issuer has. A token says which one; `none` and HS* are not among them.

EdDSA is the older name of Ed25519.
"""
KEYS_KEPT_SECONDS: Final = 3_600.0
REREAD_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 5.0
"""How long after a failure the issuer is not asked again."""
TOKEN_MAX: Final = 16 << 10
DOCUMENT_MAX: Final = 1 << 20
TIMEOUT_SECONDS: Final = 5.0
_OBJECT: Final = TypeAdapter(dict[str, Any])
Key = RSAKey | ECKey | OKPKey

log = logger("oidc")


class OidcBearers:
    """See `service.ports.tokens.Bearers`."""

    def __init__(self, rules: OidcRules, clock: Clock) -> None:
        self._rules, self._clock = rules, clock
        self._keys: Mapping[str | None, Key] = {}
        self._read_at: float | None = None
        self._failed_at: float | None = None
        self._reading = asyncio.Lock()
        # Made once, because reading the certificate authorities blocks the event loop.
        self._authorities = httpx.create_ssl_context(trust_env=False)

    async def caller(self, text: str) -> Asker | None:
        """Return the bearer of a JWT, or None."""
        header = _header(text)
        if header is None:
            return None
        key = await self._key(header.get("kid"))
        claims = None if key is None else _claims(text, key)
        found = None if claims is None else bearer(claims, self._rules, now=self._clock.now())
        return None if found is None else Asker(f"oidc {found[0]}", found[1])

    async def _key(self, kid: str | None) -> Key | None:
        """Return a key of the issuer. Without an id, it is the only one. Raises Unavailable."""
        if self._is_due(kid):
            async with self._reading:
                if self._is_due(kid):
                    await self._read()
        if self._read_at is None:
            raise Unavailable("the OIDC issuer does not answer: tokens cannot be checked now")
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    def _is_due(self, kid: str | None) -> bool:
        now = self._clock.monotonic()
        if self._failed_at is not None and now - self._failed_at < RETRY_SECONDS:
            return False
        if self._read_at is None:
            return True
        age = now - self._read_at
        return age >= KEYS_KEPT_SECONDS or (kid is not None and kid not in self._keys and age >= REREAD_SECONDS)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), self._client() as client:
                where = await _keys_url(client, self._rules.issuer)
                self._keys = _usable(await _document(client, where))
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            self._failed_at = self._clock.monotonic()
            log.warning("oidc.keys_not_read", issuer=self._rules.issuer, error=f"{type(error).__name__}: {error}")
        else:
            self._read_at, self._failed_at = self._clock.monotonic(), None

    def _client(self) -> httpx.AsyncClient:
        # Without proxies and credentials from the environment, and without redirects.
        return httpx.AsyncClient(verify=self._authorities, timeout=TIMEOUT_SECONDS, trust_env=False)


async def _keys_url(client: httpx.AsyncClient, issuer: str) -> str:
    """Return where the issuer's keys are. Raises httpx.HTTPError, ValueError."""
    found = await _document(client, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    where = found.get("jwks_uri")
    if found.get("issuer") != issuer or not isinstance(where, str) or not is_trusted(where):
        raise ValueError("the discovery document is another issuer's, or names keys without https")
    return where


async def _document(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """Return a JSON object. Raises httpx.HTTPError, ValueError."""
    body = bytearray()
    async with client.stream("GET", url) as answer:
        answer.raise_for_status()
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > DOCUMENT_MAX:
                raise ValueError(f"{url} has more than {DOCUMENT_MAX} bytes")
    return _OBJECT.validate_json(bytes(body))


def _usable(document: Mapping[str, Any]) -> Mapping[str | None, Key]:
    """Return the public keys of a JWK set that sign. Keys of unknown kinds are left out."""
    found: dict[str | None, Key] = {}
    for one in document.get("keys", ()):
        try:
            (key,) = KeySet.import_key_set({"keys": [one]}).keys
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        if isinstance(key, Key) and one.get("use", "sig") == "sig" and not key.is_private:
            found[one.get("kid")] = key
    return found


def _header(text: str) -> Mapping[str, Any] | None:
    """Return the header of a token, which is not checked yet, or None for what this service cannot check."""
    if len(text) > TOKEN_MAX:
        return None
    try:
        header = _OBJECT.validate_python(jws.extract_compact(text.encode()).headers())
    except Exception:  # noqa: BLE001 - whatever a stranger's text has the library raise, it is no token
        return None
    fits = header.get("alg") in ALGORITHMS and isinstance(header.get("kid", ""), str)
    return header if fits else None


def _claims(text: str, key: Key) -> Mapping[str, Any] | None:
    """Return the claims of a token that this key has signed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)  # it is given for the older name of Ed25519
            return jwt.decode(text, key, algorithms=ALGORITHMS).claims
    except Exception:  # noqa: BLE001 - as above
        return None
